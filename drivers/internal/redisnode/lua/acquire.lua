-- Takes the lock if it is free.
-- KEYS: 1 lock, 2 counter, 3 mark; 4 queue, if somebody waits, or for a reply that tells the counter.
-- ARGV: 1 not-after (us), 2 owner/attempt, 3 PX without GRACE (ms), 4 proposed token (us) or 0, 5 life of the counter after its token (ms),
-- 6 place in the queue, if somebody waits; and then 7 PX of the queue (ms), 8 since when the caller waits (us) or 0;
-- 9 how many tokens, if more than one: the last of them is the token. Then 6 to 8 are '' if nobody waits.
-- Reply: TIME granted at TIME, if no token is proposed and there are three keys; granted at the proposed token: one number, see proposed;
-- {1, token, TIME, the counter before or ''} granted at another, {1, token, TIME} to this attempt before; {0, value, PTTL, TIME} held; {-1, TIME} too late.
local try, place, more, v, got = redis.pcall, ARGV[6] ~= '' and ARGV[6], (ARGV[9] or 1) - 1, false, false
local fence, x, px = ARGV[4], ARGV[4] + 0, GRACE == 0 and ARGV[3] or string.format('%.0f', ARGV[3] + GRACE)
if x > now + 500000 or x < now - 2000000 or x < till + more then
  x = math.max(x == 0 and now or math.min(x, now + 500000), now - 2000000, till + more)
  fence = x == now and #t[2] == 6 and t[1] .. t[2] or string.format('%.0f', x)
end
local value = ARGV[2] .. '|' .. fence
local since = place and (ARGV[8] ~= '0' and ARGV[8] or fence)
if place then v = redis.call('GET', KEYS[1]) end
if not v then
  v = try('SET', KEYS[1], value, 'PX', px, 'NX', 'GET')
  got = not v
  if not got and v.err then -- Redis 6 refuses GET beside NX; any other error comes again
    got = redis.call('SET', KEYS[1], value, 'PX', px, 'NX')
    v = not got and redis.call('GET', KEYS[1])
  end
  if got and place then try('ZREM', KEYS[4], place) end -- it was not its turn yet
else -- it may be kept for this one, or for one that came later, who then waits on
  local later, other = string.match(v, '^redlock1:next|(%d+)|(.*)$')
  if other == place then
    got = redis.call('SET', KEYS[1], value, 'PX', px)
  elseif other and tonumber(later) > tonumber(since) then
    got = redis.call('SET', KEYS[1], value, 'PX', px)
    try('ZREM', KEYS[4], place)
    try('ZADD', KEYS[4], 'NX', later, other)
    try('PEXPIRE', KEYS[4], ARGV[7])
  end
end
-- The reply of a grant at the proposed token: how far the counter was behind it (0: there was none), times 2^22, and TIME - x + 2^19.
local function proposed(counter) return (counter and x - counter or 0) * 4194304 + now - x + 524288 end
if got then
  -- The rule: the counter is a little behind the clock, and one command reads and raises it.
  local ends = x > now and string.format('%.0f', ARGV[5] + math.ceil((x - now) / 1000)) or ARGV[5]
  local old = try('SET', KEYS[2], fence, 'PX', ends, 'GET')
  local counter, why = old and tonumber(old), nil
  if counter and counter + more < x and counter >= x - x % 10000000 then
    if ARGV[4] == '0' and #KEYS == 3 then return now end
    if ARGV[4] == fence then return proposed(counter) end
    return {1, x, now, old}
  end
  if type(old) == 'table' then -- refused (rights, type)
    redis.call('DEL', KEYS[1])
    return old
  end
  local mark = KEYS[3]
  -- lua/counter.lua
  -- lua/correct_token.lua
  local first = x
  x, why = correct_token(KEYS[1], KEYS[2], ARGV[2] .. '|', px, x, old, ARGV[5], more)
  if x == first and ARGV[4] == '0' and #KEYS == 3 then return now end
  if x == first and ARGV[4] == fence and x - (counter or x) < 2147483648 then return proposed(counter) end
  return why or {1, x, now, old or ''}
end
local me = ARGV[2] .. '|'
if string.sub(v, 1, #me) == me then -- a retried command: its own attempt
  redis.call('PEXPIRE', KEYS[1], px)
  return {1, tonumber(string.sub(v, #me + 1)), now}
end
if place then -- the queue helps those who wait, and protects nothing: what refuses it may
  try('ZADD', KEYS[4], 'NX', since, place)
  try('PEXPIRE', KEYS[4], ARGV[7])
end
return {0, string.sub(v, 1, 1024), redis.call('PTTL', KEYS[1]), now}
