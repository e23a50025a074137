-- Takes the lock for a reader if it is free, or other readers have it and no writer waits that came earlier. Who is let in
-- lets in the readers who are first in the queue.
-- KEYS: 1 lock, 2 counter, 3 mark, 4 readers, 5 queue.
-- ARGV: 1 not-after (us), 2 owner/attempt, 3 PX without GRACE (ms), 4 proposed token (us) or 0, 5 life of the counter after its token (ms),
-- 6 '1' if the command may be a repetition, 7 '1' if the reply of PUBLISH tells whether a waiter is there, 8 prefix of a waiter's own
-- channel, 9 place in the queue or '', 10 PX of the queue (ms), 11 since when the caller waits (us) or 0; 12 '1' in a node of a quorum.
-- Reply: {1, token, TIME} granted, of such a node {1, token, TIME, the counter before the first of the readers} if it was not before; {0, value, PTTL, TIME} held; {-1, TIME} too late.
local lock, mark, readers, queue, counts, channels, place = KEYS[1], KEYS[3], KEYS[4], KEYS[5], ARGV[7], ARGV[8], ARGV[9]
-- lua/readers.lua
-- lua/counter.lua
local me, ends, since = ARGV[2] .. '|', now + (ARGV[3] + GRACE) * 1000, ARGV[11] == '0' and now or ARGV[11] + 0
-- waits reports whether a writer waits that came earlier. It forgets writers whose process has gone.
local function waits()
  for _, other in ipairs(redis.pcall('ZRANGE', queue, '-inf', '(' .. whole(since), 'BYSCORE', 'LIMIT', 0, 100)) do
    if not reads(other) then
      if tell(other) > 0 then return true end
      redis.call('ZREM', queue, other)
    end
  end
end
local v = redis.call('GET', lock)
local free, there = not v, shared(v) and latest()
if shared(v) then
  local mine = ARGV[6] == '1' and own(me)[1]
  if mine then -- a retried command
    redis.call('ZADD', readers, whole(ends), mine)
    keep(latest())
    return {1, tonumber(string.sub(mine, #me + 1)), now}
  end
  -- Without its set a lock of readers is theirs to its end, whoever they are.
  free = redis.call('ZREM', readers, NEXT .. place) == 1 or (v ~= MARKER or latest()) and not waits()
elseif v then -- it may be kept for this one, or for one that came later, who then waits on
  local later, other = string.match(v, '^redlock1:next|(%d+)|(.*)$')
  free = other and (other == place or tonumber(later) > since)
  if free and other ~= place then
    redis.call('ZADD', queue, 'NX', later, other)
    redis.call('PEXPIRE', queue, ARGV[10])
  end
end
if not free then
  if place ~= '' then
    redis.pcall('ZADD', queue, 'NX', whole(since), place)
    redis.pcall('PEXPIRE', queue, ARGV[10])
  end
  return {0, string.sub(v, 1, 1024), redis.call('PTTL', lock), now}
end
local x = ARGV[4] + 0
x = x == 0 and now or math.max(math.min(x, now + 500000), now - 2000000, till)
local counter, why = parsed(redis.call('GET', KEYS[2]))
if why then return why end
if counter and counter >= x then x = counter + 1 end
if not counter or enters(x, counter) then x, why = look(x, not counter) end
if why then return why end
if not there then redis.call('DEL', readers) end
local before = ARGV[12] and begin(VOTES, counter or 0)
redis.call('ZREM', queue, place) -- it was not its turn yet
redis.call('SET', KEYS[2], digits(x), 'PX', life(x, ARGV[5]))
redis.call('ZADD', readers, whole(ends), me .. digits(x))
admit()
keep(latest())
return {1, x, now, before and (before > 0 and whole(before) or '') or nil}
