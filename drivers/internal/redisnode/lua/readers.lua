-- Part of acquire_shared, renew_shared and release_shared: the readers of a lock. While readers have it, or it is kept for
-- some, the lock is MARKER, and its PX that of the reader who has it longest. A lock that is no MARKER has no readers,
-- whatever the set has: it was left by readers whose lock has ended or was deleted.
-- lock, readers, queue and now are locals; channels is the prefix of waiters' own channels, and counts '1' if the reply of
-- PUBLISH tells whether a waiter is there. readers is a sorted set: owner/attempt|token, or 'redlock1:next|' and the place of a
-- reader that the lock is kept for, by the time (us) when it ends.
-- A reader's place in the queue is channel.rNUMBER.time, a writer's channel.number.time.
local MARKER, NEXT, LONGEST = 'redlock1:shared', 'redlock1:next|', 2678400000000
local function whole(n) return string.format('%.0f', n) end
-- latest returns the latest end of a reader; nil: there is none. It forgets readers who have ended, some at a time.
local function latest()
  local ended = redis.call('ZRANGE', readers, '-inf', whole(now), 'BYSCORE', 'LIMIT', 0, 1000)
  if ended[1] then redis.call('ZREM', readers, unpack(ended)) end
  local last = tonumber(redis.call('ZRANGE', readers, -1, -1, 'WITHSCORES')[2] or '0')
  return last > now and math.min(last, now + LONGEST) or nil
end
-- own returns the members of an attempt.
local function own(me)
  local all = {}
  for _, member in ipairs(redis.call('ZRANGE', readers, 0, -1)) do
    if string.sub(member, 1, #me) == me then all[#all + 1] = member end
  end
  return all
end
-- keep lets the lock, and the set, end with the last reader.
local function keep(last)
  local px = whole(math.ceil((last - now) / 1000))
  redis.call('PEXPIRE', readers, px)
  redis.call('SET', lock, MARKER, 'PX', px)
end
local function reads(place) return string.find(place, '^[^.]*%.r') end
-- tell publishes to the process of a place, and returns how many have heard it.
local function tell(place, delay)
  local heard = redis.pcall('PUBLISH', channels .. string.match(place, '^[^.]*'), delay and delay .. ' ' .. place .. ' ' .. lock or '')
  return type(heard) == 'number' and heard or 1
end
-- admit lets in the readers who are first in the queue, up to the first writer: it keeps the lock for each for a moment,
-- and tells it. That writer is told to ask after the moment, since they may be dead.
local function admit()
  local most = 0
  for _ = 1, 100 do
    local place = redis.pcall('ZRANGE', queue, 0, 0)[1]
    if place and not reads(place) and most > 0 then tell(place, whole(most)) end
    if not place or not reads(place) then return most > 0 end
    redis.call('ZREM', queue, place)
    local time = tonumber(string.match(place, '%d+$') or '30')
    if tell(place, '0') > 0 or counts ~= '1' then
      redis.call('ZADD', readers, whole(now + time * 1000), NEXT .. place)
      most = math.max(most, time)
    end
  end
  return most > 0
end
