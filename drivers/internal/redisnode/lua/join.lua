-- Takes the lock at exactly one token: heals a node of a quorum after the grant.
-- KEYS: 1 lock, 2 counter, 3 mark.
-- ARGV: 1 not-after (us), 2 owner/attempt, 3 PX without GRACE (ms), 4 token (us), 5 life of the counter (ms),
-- 6 the nodes' time (us) when the lease was last confirmed.
-- A lock that is only kept for a waiter is free for it.
-- Reply: {1, token, TIME}, or as acquire's, or {-2, counter, TIME} if the counter is above the token, or may have been.
local me = ARGV[2] .. '|'
local v = redis.call('GET', KEYS[1])
if v and string.sub(v, 1, 14) ~= 'redlock1:next|' then
  if string.sub(v, 1, #me) == me then
    redis.call('PEXPIRE', KEYS[1], ARGV[3] + GRACE)
    return {1, tonumber(string.sub(v, #me + 1)), now}
  end
  return {0, string.sub(v, 1, 1024), redis.call('PTTL', KEYS[1]), now}
end
local mark = KEYS[3]
-- lua/counter.lua
local x = tonumber(ARGV[4])
local counter, why = parsed(redis.call('GET', KEYS[2]))
if why then return why end
local above = counter
-- lua/join_counter.lua
redis.call('SET', KEYS[1], me .. ARGV[4], 'PX', ARGV[3] + GRACE)
return {1, x, now}
