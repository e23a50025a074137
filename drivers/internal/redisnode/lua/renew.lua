-- Extends the lock if this very acquisition has it. Never takes it again.
-- KEYS: 1 lock, 2 counter, 3 mark.
-- ARGV: 1 not-after (us), 2 value (owner/attempt|token), 3 PX without GRACE (ms), 0 if the holder is done, 4 least counter (us) or 0,
-- 5 life of the counter (ms), 6 minimum time for which the lock is kept (ms).
-- Reply: {1, TIME} extended; {0, TIME} lost; {-1, TIME} too late.
if redis.call('GET', KEYS[1]) ~= ARGV[2] then return {0, now} end
local mark = KEYS[3]
-- lua/counter.lua
-- lua/keep_counter.lua
local px = ARGV[3] == '0' and 0 or ARGV[3] + GRACE
redis.call('PEXPIRE', KEYS[1], math.max(px, tonumber(ARGV[6])))
return {1, now}
