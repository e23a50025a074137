-- Takes the lock away from the holder with this token.
-- KEYS: 1 lock.
-- ARGV: 1 '0', 2 token, 3 channel.
-- Reply: {1} freed; {0} there is no such holder.
local v = redis.call('GET', KEYS[1])
if not v or string.match(v, '^[^|]+|(%d+)$') ~= ARGV[2] then return {0} end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[3], '')
return {1}
