-- Part of release and release_shared. lock and queue are locals, and silent says that nobody is told; ARGV as of release.
-- hand_over keeps the lock for the first writer in the queue for a moment, or frees it, and returns the reply of release.
local function hand_over()
  local there
  for _ = 1, silent and 0 or 100 do
    local first = redis.pcall('ZPOPMIN', queue)
    local place = first[1]
    if not place then break end
    if string.find(place, '^[^.]*%.r') then
      redis.call('ZADD', queue, first[2], place)
      return 4
    end
    local function tell(place, delay)
      return redis.pcall('PUBLISH', ARGV[3] .. string.match(place, '^[^.]*'), delay .. ' ' .. place .. ' ' .. lock)
    end
    local time = string.match(place, '%d+$') or '30'
    there = tell(place, '0')
    if type(there) == 'table' then break end
    if time ~= '0' and (there > 0 or ARGV[1] ~= '1') then
      if redis.pcall('SET', lock, 'redlock1:next|' .. first[2] .. '|' .. place, 'PX', time).err then break end
      local second = redis.pcall('ZRANGE', queue, 0, 0)[1]
      if second then tell(second, time) end
      return 3
    end
  end
  redis.call('DEL', lock)
  return type(there) == 'table' and 2 or 1
end
