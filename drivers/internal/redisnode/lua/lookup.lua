-- Who holds the lock?
-- KEYS: 1 lock, 2 counter.
-- ARGV: 1 '0'.
-- Reply: {TIME, counter, value or '', PTTL}; PTTL is -2 where the lock is free, -1 where it never ends.
local t = redis.call('TIME')
local v = redis.call('GET', KEYS[1])
local pttl = -2
if v then pttl = redis.call('PTTL', KEYS[1]) end
return {t[1] * 1000000 + t[2], tonumber(redis.call('GET', KEYS[2]) or '0') or 0, v or '', pttl}
