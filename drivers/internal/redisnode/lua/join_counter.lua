-- Part of join and join_shared: the counter of a lock that is taken at exactly token x. above is what must not be above x: the counter,
-- or with readers what it was before them, since they may have raised it, and no writer has.
-- The bid whose vote left a larger counter may still count the vote, or be a lease. It voted before counter + 2 s, and was granted
-- within QUARANTINE after that or never; and a lease that was confirmed later has proved that no larger token was granted before.
if above and above > x and above + 2000000 + QUARANTINE >= ARGV[6] + 0 then return {-2, above, now} end
local stored = math.max(x, counter or 0) -- no higher, so that the lease can join again
if not counter then
  -- A counter above the token may have ended, unless the lease was confirmed a short while ago.
  local high, odd, floor = marked()
  if not high then return odd end
  if x <= floor or high > ARGV[6] + ARGV[5] * 1000 - INTERVAL then return {-2, floor, now} end
  stored, why = look(stored, true)
elseif enters(stored, counter) then
  stored, why = look(stored, false)
end
if why then return why end
redis.call('SET', KEYS[2], digits(stored), 'PX', life(stored, ARGV[5]))
