-- Stands before what may come too late: acquire, join and renew.
-- ARGV: 1 not-after (us). Reply: {-1, TIME} too late.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if now > tonumber(ARGV[1]) then return {-1, now} end
