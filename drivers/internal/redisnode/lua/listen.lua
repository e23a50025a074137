-- Enters a listener in the queue, behind all places. The next release that finds no place tells all listeners, and removes
-- them.
-- KEYS: 1 lock, 2 queue.
-- ARGV: 1 '0', 2 the listener, channel.0.0, 3 PX of the queue (ms).
-- Reply: {1}.
redis.call('ZADD', KEYS[2], 'NX', '9007199254740991', ARGV[2])
redis.pcall('PEXPIRE', KEYS[2], ARGV[3])
return {1}
