-- Frees the lock if this acquisition has it, keeps it for a moment for the first waiter in the queue, and tells that waiter.
-- If no waiter in it is there, it tells all listeners.
-- KEYS: 1 lock, 2 queue; 3 counter, if a vote is given back.
-- ARGV: 1 '1' if the reply of PUBLISH tells whether a waiter is there, 2 value (owner/attempt|token), or owner/attempt| for
-- any token, or '', 3 prefix of a waiter's own channel,
-- 4 a place in the queue to give up, if there is one, and with it the lock if it is kept for that place, or free.
-- 5 if it is there and not empty, the lock is free for anybody, and nobody is told.
-- 6 what the counter was before this grant, or '' if there was none: a vote that was never counted is given back.
-- A place is channel.number.time, of a reader channel.rNUMBER.time: the time (ms) says for how long the lock is kept; 0: a
-- listener, behind all waiters. The message is: delay (ms), place, lock. The second waiter asks again after the delay, since the
-- first may be dead.
-- Reply: 1 freed; 0 another acquisition has it; 2 freed, but PUBLISH is refused; 3 kept for the next; 4 nothing was done, since it is
-- for release_shared: a reader is next, or readers have the lock.
local lock, queue, silent = KEYS[1], KEYS[2], (ARGV[5] or '') ~= ''
-- lua/hand_over.lua
local v, me, quits = redis.call('GET', KEYS[1]), ARGV[2], ARGV[4] or ''
local mine = v and me ~= '' and (v == me or string.sub(me, -1) == '|' and string.sub(v, 1, #me) == me)
if quits ~= '' then
  redis.pcall('ZREM', KEYS[2], quits)
  if v and (v == 'redlock1:shared' or string.find(v, 'redlock1:next|0|', 1, true)) then return 4 end
  mine = mine or not v or string.match(v, '^redlock1:next|%d+|(.*)$') == quits
end
if not mine then return 0 end
if ARGV[6] and redis.pcall('GET', KEYS[3]) == string.match(me, '%d+$') then
  if ARGV[6] == '' then redis.pcall('DEL', KEYS[3]) else redis.pcall('SET', KEYS[3], ARGV[6], 'KEEPTTL') end
end
return hand_over()
