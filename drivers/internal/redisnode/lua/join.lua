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
-- The bid whose vote left a larger counter may still count the vote, or be a lease. It voted before counter + 2 s, and was granted
-- within QUARANTINE after that or never; and a lease that was confirmed later has proved that no larger token was granted before.
if counter and counter > x and counter + 2000000 + QUARANTINE >= ARGV[6] + 0 then return {-2, counter, now} end
local stored = math.max(x, counter or 0) -- no higher, so that the lease can join again
if not counter then
  -- A counter above the token may have ended, unless the lease was confirmed a short while ago.
  local high, odd, floor = marked()
  if not high then return odd end
  if x <= floor or now > ARGV[6] + ARGV[5] * 1000 - INTERVAL then return {-2, floor, now} end
  stored, why = look(stored, true)
elseif enters(stored, counter) then
  stored, why = look(stored, false)
end
if why then return why end
redis.call('SET', KEYS[2], digits(stored), 'PX', life(stored, ARGV[5]))
redis.call('SET', KEYS[1], me .. ARGV[4], 'PX', ARGV[3] + GRACE)
return {1, x, now}
