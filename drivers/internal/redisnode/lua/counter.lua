-- Part of acquire, join, renew and batch, after the code that serves most calls: fencing counters that end some time
-- after their last token. mark is the name of "high top floor" in microseconds: the latest clock at a look, the largest
-- token until then, and the limit above which the token of a lock without a counter must be.
-- A look is needed if there is no counter, if a token enters another interval than the one before, and if it is ahead
-- of the clock. A clock that has fallen by more than INTERVAL may have ended counters whose tokens are ahead of it. After
-- a smaller fall a token that is ahead has its counter still; and a floor that is ahead of the clock is forgotten with the
-- server's memory, so that its tokens would be given again.
local INTERVAL, AHEAD, MOST = 10000000, 500000, 9007199254740991
local function digits(n) return string.format('%.0f', n) end
-- parsed returns the number that a counter holds, nil without one; or nil and an error.
local function parsed(old)
  local counter = old and tonumber(old) or nil
  if counter or not old then return counter end
  return nil, redis.error_reply('ERR the fencing counter of this lock holds something else')
end
-- marked returns the parts of the mark, with the clock of this look, and with a floor that is above all tokens until the
-- last look if the clock has fallen; or nil and an error.
local function marked()
  local stored = redis.pcall('GET', mark)
  local odd = 'ERR the mark of the fencing counters holds something else'
  if type(stored) == 'table' then
    return nil, string.find(stored.err, 'WRONGTYPE', 1, true) and redis.error_reply(odd) or stored
  end
  local high, top, floor = string.match(stored or '0 0 0', '^(%d+) (%d+) (%d+)$')
  if not high then return nil, redis.error_reply(odd) end
  high, top, floor = tonumber(high), tonumber(top), tonumber(floor)
  if now < high - INTERVAL then return now, top, math.max(floor, top + INTERVAL) end
  return math.max(high, now), top, floor
end
-- look returns the token, raised above the floor, with the tokens of its range, if there is no counter; or nil and an error.
local function look(x, missing, more)
  local high, top, floor = marked()
  if not high then return nil, top end
  if missing then x = math.max(x, floor + (more or 0) + 1) end
  if x > MOST then return nil, redis.error_reply('ERR the fencing counter of this lock is at its end') end
  local said = redis.pcall('SET', mark, digits(high) .. ' ' .. digits(math.max(top, x)) .. ' ' .. digits(floor))
  if said.err then return nil, said end
  return x
end
-- enters reports whether token x needs a look, after token old.
local function enters(x, old)
  return math.floor(x / INTERVAL) ~= math.floor(old / INTERVAL) or x > now + AHEAD
end
-- life is the PX of a counter with token x: it ends ms milliseconds after x, or after now if that is later.
local function life(x, ms) return digits(math.ceil((math.max(now, x) - now) / 1000) + ms) end
