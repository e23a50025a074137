-- Who holds these locks, and how many wait for each?
-- KEYS: locks, each followed by its counter and its queue. No ARGV.
-- Reply: for each lock the first KiB of its value, PTTL, counter, number of waiters; PTTL is -2 if the lock is free
-- or its value is no string.
local all = {}
for i = 1, #KEYS / 3 do
  local lock = KEYS[3 * i - 2]
  local v, pttl, counter, waiters = redis.pcall('GETRANGE', lock, 0, 1023), -2, false, 0
  if type(v) ~= 'string' then v = '' end
  if v ~= '' then
    pttl, counter = redis.call('PTTL', lock), redis.pcall('GET', KEYS[3 * i - 1])
    waiters = redis.pcall('ZCOUNT', KEYS[3 * i], 0, 9007199254740990)
  end
  if type(counter) ~= 'string' then counter = '0' end
  if type(waiters) == 'table' then waiters = 0 end
  all[4 * i - 3], all[4 * i - 2], all[4 * i - 1], all[4 * i] = v, pttl, tonumber(counter) or 0, waiters
end
return all
