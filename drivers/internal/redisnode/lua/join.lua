-- Takes the lock at exactly one token: heals a node of a quorum after the grant.
-- KEYS: 1 lock, 2 counter.
-- ARGV: 1 not-after (us), 2 owner/attempt, 3 PX without GRACE (ms), 4 token (us), 5 PX of the counter (ms).
-- Reply: as acquire's, or {-2, counter, TIME} where the counter is above the token.
local me = ARGV[2] .. '|'
local v = redis.call('GET', KEYS[1])
if v then
  if string.sub(v, 1, #me) == me then
    redis.call('PEXPIRE', KEYS[1], ARGV[3] + GRACE)
    return {1, tonumber(string.sub(v, #me + 1)), now}
  end
  return {0, v, redis.call('PTTL', KEYS[1]), now}
end
local x = tonumber(ARGV[4])
local counter = tonumber(redis.call('GET', KEYS[2]) or '0')
if counter > x then return {-2, counter, now} end
redis.call('SET', KEYS[2], ARGV[4], 'PX', ARGV[5])
redis.call('SET', KEYS[1], me .. ARGV[4], 'PX', ARGV[3] + GRACE)
return {1, x, now}
