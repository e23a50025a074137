-- Extends what this very acquisition has of a lock that readers share. Never takes it again.
-- KEYS: 1 lock, 2 counter, 3 mark, 4 readers.
-- ARGV and reply: as of renew.
local lock, mark, readers = KEYS[1], KEYS[3], KEYS[4]
-- lua/readers.lua
if not shared(redis.call('GET', lock)) or not latest() or redis.call('ZREM', readers, ARGV[2]) == 0 then return {0, now} end
local px = ARGV[3] == '0' and 0 or ARGV[3] + GRACE
redis.call('ZADD', readers, whole(now + math.max(px, tonumber(ARGV[6])) * 1000), ARGV[2])
leased()
keep(latest())
-- lua/counter.lua
-- lua/keep_counter.lua
return {1, now}
