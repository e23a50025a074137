-- Who holds the lock, and how many wait for it?
-- KEYS: 1 lock, 2 counter, 3 queue, 4 readers.
-- ARGV: 1 '0'.
-- Reply: {TIME, counter, the first KiB of the value or '', PTTL, number of waiters in the queue, the readers, a thousand at most, each
-- followed by its end (us); the first hundred waiters, each followed by the time since when it waits (us)}; PTTL is -2 if the lock is
-- free, -1 if it never ends.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local v, waiters = redis.call('GETRANGE', KEYS[1], 0, 1023), redis.pcall('ZCOUNT', KEYS[3], 0, 9007199254740990)
if type(waiters) == 'table' then waiters = 0 end
local first, readers = {}, {}
if waiters > 0 then first = redis.pcall('ZRANGE', KEYS[3], 0, 99, 'WITHSCORES') end
if first.err then first = {} end
if v == 'redlock1:shared' then readers = redis.pcall('ZRANGE', KEYS[4], 0, 999, 'WITHSCORES') end
if readers.err then readers = {} end
return {now, tonumber(redis.call('GET', KEYS[2]) or '0') or 0, v, redis.call('PTTL', KEYS[1]), waiters, readers, first}
