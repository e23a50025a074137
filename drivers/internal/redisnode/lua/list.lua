-- Who holds these locks, and how many wait for each?
-- KEYS: locks, each followed by its counter, its queue and its readers. No ARGV.
-- Reply: {TIME, for each lock counter, the first KiB of its value, PTTL, number of waiters, readers as of lookup}; PTTL is -2 if the
-- lock is free or its value is no string.
local t = redis.call('TIME')
local all = {t[1] * 1000000 + t[2]}
for i = 1, #KEYS, 4 do
  local lock = KEYS[i]
  local v, pttl, counter, waiters, readers = redis.pcall('GETRANGE', lock, 0, 1023), -2, false, 0, {}
  if type(v) ~= 'string' then v = '' end
  if v ~= '' then
    pttl, counter = redis.call('PTTL', lock), redis.pcall('GET', KEYS[i + 1])
    waiters = redis.pcall('ZCOUNT', KEYS[i + 2], 0, 9007199254740990)
    if v == 'redlock1:shared' then readers = redis.pcall('ZRANGE', KEYS[i + 3], 0, 999, 'WITHSCORES') end
  end
  if type(counter) ~= 'string' then counter = '0' end
  if type(waiters) == 'table' then waiters = 0 end
  if readers.err then readers = {} end
  for _, what in ipairs({tonumber(counter) or 0, v, pttl, waiters, readers}) do all[#all + 1] = what end
end
return all
