-- Stands before acquire, join and renew where a restart guard is on, after a line that
-- sets BOND, the process and the quorum that this text is for, and VOTE, whether a lock may be given.
-- KEYS: the last is meta, a hash: bond as of the last handshake; till (us), before which the server does not vote;
-- high (us), the latest that its clock was seen at; allow (us), how far it may be set back; span (us), the guard; why.
-- Reply: {-3, TIME} another process than that of the last handshake, or one that has forgotten it;
-- {-4, till, TIME, why} it does not vote yet.
local meta = KEYS[#KEYS]
local m = redis.call('HMGET', meta, 'bond', 'till', 'high', 'allow')
if m[1] ~= BOND then return {-3, now} end
local till, high, allow = tonumber(m[2]), tonumber(m[3]), tonumber(m[4])
if now < high - allow then
  -- The clock was set back. While it was ahead it may have ended locks too early.
  till = math.max(till, now + tonumber(redis.call('HGET', meta, 'span')))
  redis.call('HSET', meta, 'till', string.format('%.0f', till), 'high', string.format('%.0f', now), 'why', 'clock')
elseif now > high + allow / 2 then -- not every time: a write costs
  redis.call('HSET', meta, 'high', string.format('%.0f', now))
end
if VOTE and now < till then return {-4, till, now, redis.call('HGET', meta, 'why')} end
