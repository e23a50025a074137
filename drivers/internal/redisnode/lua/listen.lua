-- Enters a listener in the queue, behind all places. The next release that finds no place tells all listeners, and removes
-- them.
-- KEYS: 1 lock, 2 queue.
-- ARGV: 1 '0', 2 the listener, channel.0.0, 3 PX of the queue (ms).
-- Reply: {1}; {0} the server refuses to keep a queue.
if type(redis.pcall('ZADD', KEYS[2], 'NX', '9007199254740991', ARGV[2])) == 'table' then return {0} end
redis.pcall('PEXPIRE', KEYS[2], ARGV[3])
return {1}
