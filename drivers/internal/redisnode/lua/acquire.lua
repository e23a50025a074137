-- Takes the lock, if it is free.
-- KEYS: 1 lock, 2 counter, 3 mark.
-- ARGV: 1 not-after (us), 2 owner/attempt, 3 PX without GRACE (ms), 4 proposed token (us) or 0, 5 life of the counter after its token (ms),
-- 6 place in line, if somebody waits; and then 7 line, 8 PX of the line (ms), 9 since when it waits (us) or 0.
-- Reply: TIME granted at the proposed token, or at TIME where that is 0; {1, token, TIME} granted at another; {0, value, PTTL, TIME} held; {-1, TIME} too late.
local me = ARGV[2] .. '|'
local fence, x, px = ARGV[4], tonumber(ARGV[4]), GRACE == 0 and ARGV[3] or string.format('%.0f', ARGV[3] + GRACE)
if x == 0 or x > now + 500000 or x < now - 2000000 or x < till then
  x = x == 0 and now or math.max(math.min(x, now + 500000), now - 2000000, till)
  fence = string.format('%.0f', x)
end
local place, v, got = ARGV[6] or '', false, false
local since = ARGV[9] ~= '0' and ARGV[9] or fence
if place ~= '' then v = redis.call('GET', KEYS[1]) end
if not v then
  got = redis.call('SET', KEYS[1], me .. fence, 'PX', px, 'NX')
  if not got then
    v = redis.call('GET', KEYS[1])
  elseif place ~= '' then
    redis.pcall('ZREM', ARGV[7], place) -- it was not its turn yet
  end
else -- it may be kept for this one, or for one that came later, who then waits on
  local later, other = string.match(v, '^redlock1:next|(%d+)|(.*)$')
  if other == place then
    got = redis.call('SET', KEYS[1], me .. fence, 'PX', px)
  elseif other and tonumber(later) > tonumber(since) then
    got = redis.call('SET', KEYS[1], me .. fence, 'PX', px)
    redis.pcall('ZREM', ARGV[7], place)
    redis.pcall('ZADD', ARGV[7], 'NX', later, other)
    redis.pcall('PEXPIRE', ARGV[7], ARGV[8])
  end
end
if got then
  -- The rule: the counter is a little behind the clock, and one command reads and raises it.
  local ends = x > now and string.format('%.0f', ARGV[5] + math.ceil((x - now) / 1000)) or ARGV[5]
  local old = redis.pcall('SET', KEYS[2], fence, 'PX', ends, 'GET')
  if type(old) == 'table' then -- refused (rights, type)
    redis.call('DEL', KEYS[1])
    return old
  end
  local counter, why = old and tonumber(old), nil
  if counter and counter < x and counter >= x - x % 10000000 and x <= now + 500000 then
    if ARGV[4] == '0' or ARGV[4] == fence then return now end
    return {1, x, now}
  end
  local mark = KEYS[3]
  -- lua/counter.lua
  -- lua/raise.lua
  x, why = raise(KEYS[1], KEYS[2], me, px, x, old, ARGV[5])
  return why or {1, x, now}
end
if string.sub(v, 1, #me) == me then -- a retried command: its own attempt
  redis.call('PEXPIRE', KEYS[1], px)
  return {1, tonumber(string.sub(v, #me + 1)), now}
end
if place ~= '' then -- the line helps those who wait, and protects nothing: what refuses it may
  redis.pcall('ZADD', ARGV[7], 'NX', since, place)
  redis.pcall('PEXPIRE', ARGV[7], ARGV[8])
end
return {0, string.sub(v, 1, 1024), redis.call('PTTL', KEYS[1]), now}
