-- Part of acquire_shared, renew_shared and release_shared: the readers of a lock. While readers have it the lock is MARKER, and
-- its PX that of the reader who has it longest. If it is only kept for readers it is KEPT, and the place of one. Any other lock
-- has no readers, whatever the set has: it was left by readers whose lock has ended or was deleted.
-- lock, readers, queue and now are locals; channels is the prefix of waiters' own channels, and counts '1' if the reply of
-- PUBLISH tells whether a waiter is there. readers is a sorted set: owner/attempt|token, or NEXT and the place of a reader that
-- the lock is kept for, by the time (us) when it ends.
-- A node of a quorum has one member more, whose score is -1 - the counter when the first of the readers came: VOTES as long as
-- each reader since then was a vote that was given back, or may be, and LEASES otherwise.
-- A reader's place in the queue is channel.rNUMBER.time, a writer's channel.number.time.
local MARKER, NEXT, KEPT, LONGEST = 'redlock1:shared', 'redlock1:next|', 'redlock1:next|0|', 2678400000000
local VOTES, LEASES = 'redlock1:votes', 'redlock1:leases'
local function whole(n) return string.format('%.0f', n) end
local function begins(text, with) return string.sub(text, 1, #with) == with end
local function shared(v) return v and (v == MARKER or begins(v, KEPT)) end
-- first returns that member, and what the counter was; nil: there is none.
local function first()
  local found = redis.call('ZRANGE', readers, '-inf', '(0', 'BYSCORE', 'WITHSCORES')
  return found[1], found[1] and -1 - found[2]
end
-- begin notes what the counter is, if this is the first reader.
local function begin(member, counter)
  local there, before = first()
  if not there then redis.call('ZADD', readers, whole(-1 - counter), member) end
  return before or counter
end
-- leased notes that a reader is or was a lease, or may have been.
local function leased()
  local there, before = first()
  if there ~= VOTES then return end
  redis.call('ZREM', readers, VOTES)
  redis.call('ZADD', readers, whole(-1 - before), LEASES)
end
-- latest returns the latest end of a reader; if there is none, that of those whom the lock is kept for, and the place of one; or
-- nil. It forgets what has ended, some at a time.
local function latest()
  local ended = redis.call('ZRANGE', readers, '0', whole(now), 'BYSCORE', 'LIMIT', 0, 1000)
  if ended[1] then
    redis.call('ZREM', readers, unpack(ended))
    leased()
  end
  local all = redis.call('ZRANGE', readers, -1, -1, 'WITHSCORES')
  if all[1] and begins(all[1], NEXT) then all = redis.call('ZRANGE', readers, '0', '+inf', 'BYSCORE', 'WITHSCORES') end
  local at, place = #all - 1, nil
  while at > 0 and begins(all[at], NEXT) do at = at - 2 end
  if at < 0 and all[1] then
    at = #all - 1
    place = string.sub(all[at], #NEXT + 1)
  end
  local last = tonumber(all[at + 1] or '0')
  if last > now then return math.min(last, now + LONGEST), place end
end
-- own returns the members of an attempt.
local function own(me)
  local all = {}
  for _, member in ipairs(redis.call('ZRANGE', readers, 0, -1)) do
    if begins(member, me) then all[#all + 1] = member end
  end
  return all
end
-- keep lets the lock, and the set, end then.
local function keep(last, place)
  local px = whole(math.ceil((last - now) / 1000))
  redis.call('PEXPIRE', readers, px)
  redis.call('SET', lock, place and KEPT .. place or MARKER, 'PX', px)
end
local function reads(place) return string.find(place, '^[^.]*%.r') end
-- tell publishes to the process of a place, and returns how many have heard it.
local function tell(place, delay)
  local heard = redis.pcall('PUBLISH', channels .. string.match(place, '^[^.]*'), delay and delay .. ' ' .. place .. ' ' .. lock or '')
  return type(heard) == 'number' and heard or 1
end
-- admit lets in the readers who are first in the queue, up to the first writer: it keeps the lock for each for a moment, but
-- no longer than readers have it, and tells it. That writer is told to ask after the moment, since they may be dead. It
-- reports whether there was such a reader.
local function admit()
  local most, last, kept = 0, latest()
  for _ = 1, 100 do
    local place = redis.pcall('ZRANGE', queue, 0, 0)[1]
    if place and not reads(place) and most > 0 then tell(place, whole(most)) end
    if not place or not reads(place) then break end
    redis.call('ZREM', queue, place)
    local time = tonumber(string.match(place, '%d+$') or '30')
    if tell(place, '0') > 0 or counts ~= '1' then
      local ends = now + time * 1000
      redis.call('ZADD', readers, whole(last and not kept and math.min(ends, last) or ends), NEXT .. place)
      most = math.max(most, time)
    end
  end
  return most > 0
end
