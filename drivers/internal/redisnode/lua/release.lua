-- Frees the lock, if this acquisition has it, and wakes who waits for it.
-- KEYS: 1 lock.
-- ARGV: 1 '0' (a release is never too late), 2 value (owner/attempt|token), or owner/attempt| for whatever token, 3 channel.
-- Reply: {1} freed; {0} it was not this one's; {2} freed, but PUBLISH is refused.
local v = redis.call('GET', KEYS[1])
local me = ARGV[2]
if v ~= me and not (v and string.sub(me, -1) == '|' and string.sub(v, 1, #me) == me) then return {0} end
redis.call('DEL', KEYS[1])
local said = redis.pcall('PUBLISH', ARGV[3], '')
if type(said) == 'table' then return {2} end
return {1}
