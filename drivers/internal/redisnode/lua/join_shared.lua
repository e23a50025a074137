-- Takes the lock for a reader at exactly one token, also beside other readers: heals a node of a quorum after the grant.
-- KEYS: 1 lock, 2 counter, 3 mark, 4 readers.
-- ARGV and reply: as of join.
local lock, mark, readers = KEYS[1], KEYS[3], KEYS[4]
-- lua/readers.lua
-- lua/counter.lua
local me, ends = ARGV[2] .. '|', whole(now + (ARGV[3] + GRACE) * 1000)
local v = redis.call('GET', lock)
if v and v ~= MARKER and not begins(v, NEXT) then return {0, string.sub(v, 1, 1024), redis.call('PTTL', lock), now} end
if not shared(v) or not latest() then redis.call('DEL', readers) end
local mine = own(me)[1]
if mine then
  leased()
  redis.call('ZADD', readers, ends, mine)
  keep(latest())
  return {1, tonumber(string.sub(mine, #me + 1)), now}
end
local x = tonumber(ARGV[4])
local counter, why = parsed(redis.call('GET', KEYS[2]))
if why then return why end
local _, before = first()
local above = before or counter
-- lua/join_counter.lua
leased()
begin(LEASES, counter or 0)
redis.call('ZADD', readers, ends, me .. ARGV[4])
keep(latest())
return {1, x, now}
