-- Frees the lock if this acquisition has it, keeps it for a moment for the first waiter in the queue, and tells that waiter.
-- If only a listener is in the queue, or no waiter in it is there, or there can be no queue, it tells all who watch; if
-- nobody watches, nobody.
-- KEYS: 1 lock. The queue is not among them: a user who may not use it must still be able to release.
-- ARGV: 1 '1' if the reply of PUBLISH tells whether a waiter is there, 2 value (owner/attempt|token), or owner/attempt| for
-- any token, or '', 3 prefix of a waiter's own channel, 4 queue (the channel of all has this name, but "free" for "queue"),
-- 5 a place in the queue to give up, if there is one, and with it the lock if it is kept for that place, or free.
-- 6 if it is there and not empty, the lock is free for anybody, and nobody is told.
-- 7 counter, and 8 what it was before this grant, or '' if there was none: a vote that was never counted is given back.
-- A place is channel.number.time: the time (ms) says for how long the lock is kept. The message to a waiter is: delay
-- (ms), place, lock. The second waiter asks again after the delay, since the first may be dead.
-- Reply: 1 freed; 0 another acquisition has it; 2 freed, but PUBLISH is refused; 3 kept for the next.
local v, me, quits = redis.call('GET', KEYS[1]), ARGV[2], ARGV[5] or ''
local mine = v and me ~= '' and (v == me or string.sub(me, -1) == '|' and string.sub(v, 1, #me) == me)
if quits ~= '' then
  redis.pcall('ZREM', ARGV[4], quits)
  mine = mine or not v or string.match(v, '^redlock1:next|%d+|(.*)$') == quits
end
if not mine then return 0 end
if ARGV[7] and redis.pcall('GET', ARGV[7]) == string.match(me, '%d+$') then
  if ARGV[8] == '' then redis.pcall('DEL', ARGV[7]) else redis.pcall('SET', ARGV[7], ARGV[8], 'KEEPTTL') end
end
local heard = false
for _ = 1, (ARGV[6] or '') ~= '' and 0 or 100 do
  local first = redis.pcall('ZPOPMIN', ARGV[4])
  local place = first[1]
  heard = heard or place or first.err
  if not place or string.find(place, 'listen.', 1, true) == 1 then break end
  local function tell(place, delay)
    return redis.pcall('PUBLISH', ARGV[3] .. string.match(place, '^[^.]*'), delay .. ' ' .. place .. ' ' .. KEYS[1])
  end
  local there = tell(place, '0')
  if type(there) == 'table' then break end
  if there > 0 or ARGV[1] ~= '1' then
    local time = string.match(place, '%d+$') or '30'
    if redis.pcall('SET', KEYS[1], 'redlock1:next|' .. first[2] .. '|' .. place, 'PX', time).err then break end
    local second = redis.pcall('ZRANGE', ARGV[4], 0, 0)[1]
    if second and string.find(second, 'listen.', 1, true) ~= 1 then tell(second, time) end
    return 3
  end
end
redis.call('DEL', KEYS[1])
if not heard then return 1 end
local said = redis.pcall('PUBLISH', ARGV[3] .. string.sub(ARGV[4], #ARGV[3] + 2), '') -- "queue:" is one longer than "free:"
if type(said) == 'table' then return 2 end
return 1
