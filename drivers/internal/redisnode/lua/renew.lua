-- Extends the lock, if this very acquisition has it. Never takes it again.
-- KEYS: 1 lock, 2 counter.
-- ARGV: 1 not-after (us), 2 value (owner/attempt|token), 3 PX without GRACE (ms), 0 where the holder is done, 4 least counter (us) or 0,
-- 5 PX of the counter (ms), 6 for how long the lock is kept at least (ms).
-- Reply: {1, TIME} extended; {0, TIME} lost; {-1, TIME} too late.
if redis.call('GET', KEYS[1]) ~= ARGV[2] then return {0, now} end
if ARGV[4] ~= '0' then
  local counter = tonumber(redis.call('GET', KEYS[2]) or '0')
  if counter < tonumber(ARGV[4]) then redis.call('SET', KEYS[2], ARGV[4], 'PX', ARGV[5]) end
end
local px = ARGV[3] == '0' and 0 or ARGV[3] + GRACE
redis.call('PEXPIRE', KEYS[1], math.max(px, tonumber(ARGV[6])))
return {1, now}
