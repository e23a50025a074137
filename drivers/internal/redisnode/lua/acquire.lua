-- Takes the lock, if it is free.
-- KEYS: 1 lock, 2 counter.
-- ARGV: 1 not-after (us), 2 owner/attempt, 3 PX (ms), 4 proposed token (us) or 0, 5 PX of the counter (ms).
-- Reply: {1, token, TIME} granted; {0, value, PTTL, TIME} held; {-1, TIME} too late.
local me = ARGV[2] .. '|'
local x = now
if ARGV[4] ~= '0' then x = math.min(tonumber(ARGV[4]), now + 500000) end
local fence = string.format('%.0f', x)
if redis.call('SET', KEYS[1], me .. fence, 'PX', ARGV[3], 'NX') then
  -- The rule: the counter is behind the clock, and one command reads and raises it.
  local old = redis.pcall('SET', KEYS[2], fence, 'PX', ARGV[5], 'GET')
  if not old then return {1, x, now} end
  if type(old) == 'table' then -- refused (rights, type): undo
    redis.call('DEL', KEYS[1])
    return old
  end
  local counter = tonumber(old)
  if not counter then
    redis.call('SET', KEYS[2], old)
    redis.call('DEL', KEYS[1])
    return redis.error_reply('ERR the fencing counter of this lock holds something else')
  end
  if counter >= x then
    x = math.min(counter + 1, 9007199254740991)
    fence = string.format('%.0f', x)
    redis.call('SET', KEYS[2], fence, 'PX', ARGV[5])
    redis.call('SET', KEYS[1], me .. fence, 'PX', ARGV[3])
  end
  return {1, x, now}
end
local v = redis.call('GET', KEYS[1])
if string.sub(v, 1, #me) == me then -- a retried command: its own attempt
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return {1, tonumber(string.sub(v, #me + 1)), now}
end
return {0, v, redis.call('PTTL', KEYS[1]), now}
