-- What does the server remember of locks? Changes nothing; not bound to a process.
-- KEYS: 1 meta. No ARGV.
-- Reply: {run_id ('' if INFO is not allowed), TIME, meta or ''}.
local t = redis.call('TIME')
local info = redis.pcall('INFO', 'server')
if type(info) ~= 'string' then info = '' end
local m = redis.pcall('GET', KEYS[1]) or ''
if type(m) == 'table' then return string.find(m.err, 'WRONGTYPE', 1, true) and redis.error_reply('GUARD type') or m end
return {string.match(info, 'run_id:(%x+)') or '', t[1] * 1000000 + t[2], m}
