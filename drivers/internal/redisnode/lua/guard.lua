-- Runs before acquire, join and renew if a restart guard is on, after a line that sets HEAD, the beginning of meta as
-- long as the process is that of the last handshake and the terms are those of this text; VOTE, whether a lock may be
-- given; and of the terms ALLOWANCE (us) and GRACE (ms).
-- KEYS: the last is meta, a string of fields: layout; bond (run_id/terms of the last handshake); in microseconds till,
-- before which the server does not vote, and high, the latest time that its clock showed; '-' (an
-- earlier release may have other terms here, to which it was changing); why it does not vote.
-- Terms are N/guard/excuse/allowance/quarantine/grace/drift, in microseconds except N and the drift (%).
-- Reply: {-3, TIME, meta or ''} another process than that of the last handshake, or one that has forgotten it, or other
-- terms; {-4, till, TIME, why} it does not vote yet.
local meta = KEYS[#KEYS]
local m = redis.pcall('GET', meta)
if type(m) == 'table' then return string.find(m.err, 'WRONGTYPE', 1, true) and redis.error_reply('GUARD type') or m end
if not m or string.find(m, HEAD, 1, true) ~= 1 then return {-3, now, m or ''} end
local till, high = string.match(m, '^(%d+) (%d+)', #HEAD + 1)
till, high = tonumber(till), tonumber(high)
local known = now >= high - ALLOWANCE and now <= high + ALLOWANCE / 2
if not known or VOTE and now < till then
  local rest = string.match(m, '^%d+ %d+(.*)$', #HEAD + 1)
  if not known then -- not every time: a write costs
    if now < high then
      -- The clock was set back. While it was ahead it may have ended locks too early. For how long it does not vote is
      -- not for this clock to say: set forward again, it would end that at once. A handshake says, by the others' clocks.
      till, rest = 9007199254740991, string.match(rest, '^ %S+') .. ' clock'
    end
    redis.call('SET', meta, HEAD .. string.format('%.0f %.0f', till, now) .. rest)
  end
  if VOTE and now < till then return {-4, till, now, string.match(rest, '%a*$')} end
end
