-- Stands before acquire, join and renew where a restart guard is on, after a line that
-- sets HEAD, how meta begins as long as the process and the quorum that this text is for
-- are those of the last handshake, and VOTE, whether a lock may be given.
-- KEYS: the last is meta, a string of words: layout, bond (run_id/N of the last handshake); in microseconds till,
-- before which the server does not vote, high, the latest that its clock was seen at, allow, how far it may be set
-- back, and span, the guard; why.
-- Reply: {-3, TIME} another process than that of the last handshake, or one that has forgotten it;
-- {-4, till, TIME, why} it does not vote yet.
local meta = KEYS[#KEYS]
local m = redis.call('GET', meta)
if not m or string.find(m, HEAD, 1, true) ~= 1 then return {-3, now} end
local till, high, allow = string.match(m, '^(%d+) (%d+) (%d+)', #HEAD + 1)
till, high, allow = tonumber(till), tonumber(high), tonumber(allow)
local known = now >= high - allow and now <= high + allow / 2
if not known or VOTE and now < till then
  local rest = string.match(m, '^%d+ %d+ %d+(.*)$', #HEAD + 1)
  if not known then -- not every time: a write costs
    if now < high then
      -- The clock was set back. While it was ahead it may have ended locks too early. For how long it does not vote is
      -- not for this clock to say: set forward again, it would end that at once. A handshake says, by the others' clocks.
      till, rest = 9007199254740991, ' ' .. string.match(rest, '%d+') .. ' clock'
    end
    redis.call('SET', meta, HEAD .. string.format('%.0f %.0f %.0f', till, now, allow) .. rest)
  end
  if VOTE and now < till then return {-4, till, now, string.match(rest, '%a*$')} end
end
