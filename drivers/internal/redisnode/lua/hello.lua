-- First contact: which server process is this, and what does its clock say?
-- No KEYS but one that routes the call; no ARGV. The only script that is not bound to a process.
-- Reply: {run_id ('' where INFO is not allowed), TIME in microseconds}.
local t = redis.call('TIME')
local info = redis.pcall('INFO', 'server')
local id = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or ''
return {id, t[1] * 1000000 + t[2]}
