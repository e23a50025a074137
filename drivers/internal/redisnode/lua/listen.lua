-- Enters a listener in the queue: behind all waiters, and without a place. The next release that finds no waiter before
-- the listener tells all who watch, and removes the listener.
-- KEYS: 1 lock, 2 queue.
-- ARGV: 1 '0', 2 'listen.' and the process' own name, 3 PX of the queue (ms); '0': the listener leaves.
-- Reply: {1}; {0} the server refuses to keep a queue.
if ARGV[3] == '0' then
  redis.pcall('ZREM', KEYS[2], ARGV[2])
  return {1}
end
if type(redis.pcall('ZADD', KEYS[2], 'NX', '9007199254740991', ARGV[2])) == 'table' then return {0} end
redis.pcall('PEXPIRE', KEYS[2], ARGV[3])
return {1}
