-- Enters a listener in the queue: behind all waiters, and without a place. The next release that finds no waiter before
-- the listener tells all who watch, and removes the listener.
-- KEYS: 1 lock. The queue is not among them: see release.lua.
-- ARGV: 1 '0', 2 queue, 3 'listen.' and the process' own name, 4 PX of the queue (ms); '0': the listener leaves.
-- Reply: {1}; {0} the server refuses to keep a queue.
if ARGV[4] == '0' then
  redis.pcall('ZREM', ARGV[2], ARGV[3])
  return {1}
end
if type(redis.pcall('ZADD', ARGV[2], 'NX', '9007199254740991', ARGV[3])) == 'table' then return {0} end
redis.pcall('PEXPIRE', ARGV[2], ARGV[4])
return {1}
