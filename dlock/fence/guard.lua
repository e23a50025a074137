-- fence: KEYS[1] is the mark, ARGV[1] the token. What follows runs unless the token is stale.
if not string.match(ARGV[1], '^[1-9]%d*$') or #ARGV[1] > 16 then
  return redis.error_reply('ERR fence: ARGV[1] must be a fencing token')
end
do
  local seen = redis.call('GET', KEYS[1])
  if seen and not tonumber(seen) then
    return redis.error_reply('ERR fence: KEYS[1] holds something else than a token')
  end
  if seen and tonumber(seen) > tonumber(ARGV[1]) then
    return redis.error_reply('STALE ' .. seen .. ' is the largest token seen')
  end
  redis.call('SET', KEYS[1], ARGV[1])
end
