-- Part of renew and renew_shared, behind lua/counter.lua: the counter of a lock that is held stays, and is at its token at
-- least.
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
