-- All calls that a pipeline has gathered, in one script: the acquires, and then the releases. (In the other order no
-- acquire would find the memory full: after its first write a script may go on.) It does the usual case exactly as the
-- single scripts do, and leaves every other case to them, untouched: if somebody is in the queue, if something is refused, or
-- if a value is not ours.
-- Not for a Cluster; each key once.
-- KEYS: the locks to release, the locks to acquire, the queues of the former, the counters of the latter, mark; and meta if there
-- is a guard.
-- ARGV: 1 not-after (us), the earliest of all, 2 PX of the acquires without GRACE (ms), 3 life of their counters (ms),
-- 4 number of releases, 5 number of acquires, 6 number of
-- digits of the proposed tokens (us), 0 if none is proposed; then each release's value; then each acquire's
-- owner/attempt| and its token.
-- Reply: TIME, or any number without acquires, if all releases freed their locks and all acquires are granted at the
-- proposed token, or at TIME if that is 0. Otherwise {TIME or 0, what refuses all acquires or 0, and for each other
-- result: number, result, PTTL or, of a token, the counter before or ''}. The result is the token; 0: another lock was there; a value: held; -5: nothing was
-- done; -6: the error that stands instead of PTTL.
local K, A, try, releases, acquires, out = KEYS, ARGV, redis.pcall, ARGV[4] + 0, ARGV[5] + 0, nil
local locks = releases + acquires -- the queue or the counter of lock i is key locks + i
local function note(i, what, more)
  out = out or {0, 0}
  local n = #out
  out[n + 1], out[n + 2], out[n + 3] = i, what, more or 0
end
local function take()
  -- lua/time.lua
  -- lua/guard.lua
  local K, A, try, number, sub, px, ms = K, A, try, tonumber, string.sub, GRACE == 0 and A[2] or string.format('%.0f', A[2] + GRACE), A[3]
  local least, most, size = math.max(now - 2000000, till), now + 500000, A[6] + 0
  local x, fence, ends, odd = now, size == 0 and string.format('%.0f', now) or '', ms, nil
  for i = releases + 1, releases + acquires do
    local lock, value = K[i], A[6 + i]
    if size == 0 then
      value = value .. fence
    else
      fence = sub(value, -size)
      x = fence + 0
      ends = x > now and string.format('%.0f', ms + math.ceil((x - now) / 1000)) or ms
    end
    if x > most or x < least then
      note(i, -5)
    else
      local v = try('SET', lock, value, 'PX', px, 'NX', 'GET')
      if not v then
        local old = try('SET', K[locks + i], fence, 'PX', ends, 'GET')
        local counter = number(old)
        if counter and counter < x and counter >= x - x % 10000000 then
          -- the rule
        elseif type(old) == 'table' then
          local gone = try('DEL', lock)
          if type(gone) == 'table' then note(i, -6, gone.err) else note(i, -5) end
        else
          odd = odd or {}
          odd[#odd + 1] = {i, lock, sub(value, 1, -1 - #fence), x, old}
        end
      elseif type(v) == 'table' or string.sub(v, 1, #value - #fence) == string.sub(value, 1, -1 - #fence) then
        note(i, -5)
      else
        local left = try('PTTL', lock)
        if type(left) == 'table' then note(i, -5) else note(i, string.sub(v, 1, 1024), left) end
      end
    end
  end
  if odd then
    local mark = K[2 * locks + 1]
    -- lua/counter.lua
    -- lua/correct_token.lua
    for i = 1, #odd do
      local a = odd[i]
      local fine, x = pcall(correct_token, a[2], K[locks + a[1]], a[3], px, a[4], a[5], ms, 0)
      if not fine then
        note(a[1], -6, type(x) == 'table' and x.err or tostring(x))
      elseif x ~= a[4] or size > 0 then
        note(a[1], x or -5, x and (a[5] or ''))
      end
    end
  end
  return now
end
local now, verdict = 0, 0
if acquires > 0 then
  local fine, said = pcall(take) -- it fails before it has done anything
  if type(said) == 'number' then
    now = said
  elseif fine and not said.err then
    verdict = said
  else
    for i = releases + 1, releases + acquires do note(i, -5) end
  end
end
if releases > 0 then
  local got, mine, queues, n = try('MGET', unpack(K, 1, releases)), K, {}, 0
  for i = 1, releases do
    local v = got[i]
    if v == A[6 + i] then
      n = n + 1
      queues[n] = K[locks + i]
    else
      note(i, v and 0 or -5)
    end
  end
  if n > 0 and (n < releases or try('EXISTS', unpack(queues)) ~= 0) then -- perhaps somebody waits, or it is refused
    mine, n = {}, 0
    for i = 1, releases do
      if got[i] == A[6 + i] then
        if try('EXISTS', K[locks + i]) == 0 then
          n = n + 1
          mine[n] = K[i]
        else
          note(i, -5)
          got[i] = nil
        end
      end
    end
  end
  if n > 0 and type(try('DEL', unpack(mine, 1, n))) == 'table' then
    for i = 1, releases do
      if got[i] == A[6 + i] then note(i, -5) end
    end
  end
end
if not out and verdict == 0 then return now end
out = out or {0, 0}
out[1], out[2] = now, verdict
return out
