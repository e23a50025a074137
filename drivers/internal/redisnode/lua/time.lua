-- Runs before the scripts that must not come too late: acquire, join and renew.
-- ARGV: 1 not-after (us). Reply: {-1, TIME} too late.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if now > ARGV[1] + 0 then return {-1, now} end
