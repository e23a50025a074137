-- Frees what a reader has, or what release has left, and lets in who is next: all readers who are first in the queue, up to the
-- first writer, or that writer if no reader is left.
-- KEYS: 1 lock, 2 queue, 3 readers; 4 counter, if a vote is given back.
-- ARGV: 1 to 5, and reply, as of release, without 4. 6 if it is there, the vote was never counted: once no reader is left, and if all
-- of them gave their votes back, the counter is what it was before them.
local lock, queue, readers, counts, me, channels = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3]
local quits, silent = ARGV[4] or '', (ARGV[5] or '') ~= ''
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
-- lua/readers.lua
-- lua/hand_over.lua
local v = redis.call('GET', lock)
local mine = v and me ~= '' and (v == me or string.sub(me, -1) == '|' and string.sub(v, 1, #me) == me)
if shared(v) then
  latest()
  for _, member in ipairs(string.sub(me, -1) == '|' and own(me) or {me}) do
    if redis.call('ZREM', readers, member) == 1 then
      mine = true
      if not ARGV[6] then leased() end
    end
  end
end
if quits ~= '' then
  redis.pcall('ZREM', queue, quits)
  if shared(v) then redis.call('ZREM', readers, NEXT .. quits) end
  mine = mine or not v or shared(v) and (v ~= MARKER or latest()) or string.match(v, '^redlock1:next|%d+|(.*)$') == quits
end
if not mine then return 0 end
if ARGV[6] and shared(v) and not latest() then
  local all, before = first()
  local counter = redis.pcall('GET', KEYS[4])
  if all == VOTES and type(counter) == 'string' and (tonumber(counter) or 0) > before then
    if before == 0 then redis.pcall('DEL', KEYS[4]) else redis.pcall('SET', KEYS[4], whole(before), 'KEEPTTL') end
  end
end
if not shared(v) then redis.call('DEL', readers) end
local code = 4
while code == 4 do
  local admitted = not silent and admit()
  local last, place = latest()
  if last then
    keep(last, place)
    return admitted and 3 or 1
  end
  redis.call('DEL', readers)
  code = hand_over()
end
return code
