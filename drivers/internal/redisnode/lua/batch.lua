-- What a pipeline has gathered, in one script: acquires, and then releases. (The other way around no acquire would find
-- the memory full: a script that has written may go on.) It does what is usual, exactly as the single scripts do, and
-- leaves everything else to them, untouched: where somebody is in line, or something is refused, or odd.
-- Not for a Cluster, nor for keys with a brace, since it makes the names of lines and counters; each key once.
-- KEYS: the locks to release, the locks to acquire, mark; and meta where there is a guard.
-- ARGV: 1 not-after (us), the earliest of all, 2 PX of the acquires without GRACE (ms), 3 life of their counters (ms), 4 how
-- many releases, 5 how many acquires, 6 and 7 how the names of lines and of counters begin; then each release's value; then of
-- each acquire owner/attempt| and the proposed token (us) or 0.
-- Reply: TIME, or any number without acquires, where all were freed, and granted at the proposed token, or at TIME where that
-- is 0. Else {TIME or 0, what refuses all acquires or 0, and for each that went otherwise: number, what, PTTL}. What is the
-- token; 0: it was not this one's lock; a value: held; -5: nothing was done; -6: the error that stands instead of PTTL.
local K, A, try, releases, acquires, out = KEYS, ARGV, redis.pcall, ARGV[4] + 0, ARGV[5] + 0, nil
local function note(i, what, more)
  out = out or {0, 0}
  local n = #out
  out[n + 1], out[n + 2], out[n + 3] = i, what, more or 0
end
local function take()
  -- lua/time.lua
  -- lua/guard.lua
  local px, ms, number, last, odd = GRACE == 0 and A[2] or string.format('%.0f', A[2] + GRACE), A[3], tonumber, 6 + releases, nil
  local clock = string.format('%.0f', now)
  for i = releases + 1, releases + acquires do
    last = last + 2
    local lock, me, fence, x = K[i], A[last], A[last + 1], now
    if fence == '0' then fence = clock else x = number(fence) end
    if x > now + 500000 or x < now - 2000000 or x < till then
      note(i, -5)
    else
      local v = try('SET', lock, me .. fence, 'PX', px, 'NX', 'GET')
      if not v then
        local ends = x > now and string.format('%.0f', ms + math.ceil((x - now) / 1000)) or ms
        local old = try('SET', A[7] .. lock .. '}', fence, 'PX', ends, 'GET')
        local counter = number(old)
        if type(old) == 'table' then
          local gone = try('DEL', lock)
          if type(gone) == 'table' then note(i, -6, gone.err) else note(i, -5) end
        elseif not (counter and counter < x and counter >= x - x % 10000000) then
          odd = odd or {}
          odd[#odd + 1] = {i, lock, me, x, old}
        end
      elseif type(v) == 'table' or string.sub(v, 1, #me) == me then
        note(i, -5)
      else
        local left = try('PTTL', lock)
        if type(left) == 'table' then note(i, -5) else note(i, string.sub(v, 1, 1024), left) end
      end
    end
  end
  if odd then
    local mark = K[releases + acquires + 1]
    -- lua/counter.lua
    -- lua/raise.lua
    for i = 1, #odd do
      local a = odd[i]
      local fine, x = pcall(raise, a[2], A[7] .. a[2] .. '}', a[3], px, a[4], a[5], ms)
      if not fine then
        note(a[1], -6, type(x) == 'table' and x.err or tostring(x))
      elseif x ~= a[4] then
        note(a[1], x or -5)
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
  elseif fine then
    verdict = said
  else
    for i = releases + 1, releases + acquires do note(i, -5) end
  end
end
if releases > 0 then
  local got, mine, lines, at = try('MGET', unpack(K, 1, releases)), {}, {}, {}
  for i = 1, releases do
    local v = got[i]
    if v == A[7 + i] then
      local n = #mine + 1
      mine[n], lines[n], at[n] = K[i], A[6] .. K[i] .. '}', i
    else
      note(i, v and 0 or -5)
    end
  end
  if mine[1] and type(try('ZADD', lines[1], 'XX', 0, '')) == 'table' then -- no line can be, so all who wait only listen
    for i = 1, #mine do note(at[i], -5) end
    mine = {}
  end
  if mine[1] and try('EXISTS', unpack(lines)) ~= 0 then -- somebody waits, or it is refused
    local free, where = {}, {}
    for i = 1, #mine do
      if try('EXISTS', lines[i]) == 0 then
        free[#free + 1], where[#where + 1] = mine[i], at[i]
      else
        note(at[i], -5)
      end
    end
    mine, at = free, where
  end
  if mine[1] and type(try('DEL', unpack(mine))) == 'table' then
    for i = 1, #mine do note(at[i], -5) end
  end
end
if not out and verdict == 0 then return now end
out = out or {0, 0}
out[1], out[2] = now, verdict
return out
