-- Extends the lock if this very acquisition has it. Never takes it again.
-- KEYS: 1 lock, 2 counter, 3 mark.
-- ARGV: 1 not-after (us), 2 value (owner/attempt|token), 3 PX without GRACE (ms), 0 if the holder is done, 4 least counter (us) or 0,
-- 5 life of the counter (ms), 6 minimum time for which the lock is kept (ms).
-- Reply: {1, TIME} extended; {0, TIME} lost; {-1, TIME} too late.
if redis.call('GET', KEYS[1]) ~= ARGV[2] then return {0, now} end
local mark = KEYS[3]
-- lua/counter.lua
-- The counter of a lock that is held stays, and is at its token at least.
local counter, why = parsed(redis.call('GET', KEYS[2]))
if why then return why end
local least = math.max(tonumber(string.match(ARGV[2], '%d+$')), tonumber(ARGV[4]))
if not counter or counter < least then
  local x = least
  if not counter then x, why = look(least, true) elseif enters(least, counter) then x, why = look(least, false) end
  if why then return why end
  redis.call('SET', KEYS[2], digits(x), 'PX', life(x, ARGV[5]))
else
  redis.call('PEXPIRE', KEYS[2], life(counter, ARGV[5]))
end
local px = ARGV[3] == '0' and 0 or ARGV[3] + GRACE
redis.call('PEXPIRE', KEYS[1], math.max(px, tonumber(ARGV[6])))
return {1, now}
