"""The scripts that change runs in Redis.

A call that gets no answer is sent again. Some scripts take a token, which is the same when a call is repeated. If the
first call has already taken effect, such a script changes nothing, and reports success again.
"""

from __future__ import annotations

_HEAD = """
local run, events, records, document, open, ended, all, count = unpack(KEYS)
local id, channel, A, B, C, D, E, F, G = unpack(ARGV, 1, 9)
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local function seconds(value) return string.format('%.6f', value) end
local function get(field) return redis.call('HGET', run, field) end
local function set(...) redis.call('HSET', run, ...) end
local function lease(untl) set('leased_until', seconds(untl)) redis.call('ZADD', open, seconds(untl), id) end
local function is_open() return get('id') and not get('ending') end
local function is_holder() return get('owner') == A and get('epoch') == B end
local function finish(status)
  set('ending', status, 'ended_at', seconds(now))
  redis.call('ZREM', open, id)
  redis.call('ZADD', ended, seconds(now), id)
end
"""

SCRIPTS = {
    name: _HEAD + body
    for name, body in {
        "create": """
if get('id') then return get('creation') == C and 1 or 0 end
set('id', id, 'creation', C, 'factory', A, 'input', B, 'events', 0, 'created_at', seconds(now), 'is_cancelled', 0)
lease(now)
redis.call('ZADD', all, redis.call('INCR', count), id)
return 1
""",
        "claim": """
if not is_open() then return 0 end
if get('claim') == C then return tonumber(get('epoch')) end
if tonumber(get('leased_until')) > now then return 0 end
set('owner', A, 'token', '', 'claim', C)
lease(now + B)
return redis.call('HINCRBY', run, 'epoch', 1)
""",
        "renew": """
if not is_open() or not is_holder() then return -1 end
lease(now + C)
return tonumber(get('is_cancelled'))
""",
        "release": """
if not is_open() or not is_holder() then return 0 end
redis.call('HDEL', run, 'owner')
lease(now)
return 1
""",
        # The arguments, starting with `C`, are: the length of the lease in seconds, the token, the ending, the ending's
        # error, the known tokens, the number of events, the events and the records.
        "append": """
if not is_holder() then return -1 end
if get('token') == D then return tonumber(get('is_cancelled')) end
if not is_open() then return -1 end
local is_gap = G ~= ''
for _, known in ipairs(G == '' and {} or cjson.decode(G)) do is_gap = is_gap and known ~= get('token') end
if is_gap then return -2 end
local last = 10 + tonumber(ARGV[10])
for i = 11, last do redis.call('RPUSH', events, ARGV[i]) end
for i = last + 1, #ARGV do redis.call('RPUSH', records, ARGV[i]) end
set('events', redis.call('LLEN', events), 'token', D)
if F ~= '' then set('error', string.sub(F, 2)) end
if E ~= '' then finish(E) else lease(now + C) end
redis.call('PUBLISH', channel, (E == '' and get('events') or '') .. ':' .. id)
return tonumber(get('is_cancelled'))
""",
        "cancel": """
if not get('id') then return 0 end
if get('ending') then return 1 end
set('is_cancelled', 1)
if tonumber(get('leased_until')) <= now then finish('cancelled') end
redis.call('PUBLISH', channel, ':' .. id)
return 1
""",
        "delete": """
redis.call('ZREM', all, id)
redis.call('DEL', run, events, records)
return redis.call('ZREM', ended, id)
""",
        "write": """
local version = tonumber(redis.call('HGET', document, 'version') or 0)
if version == tonumber(A) + 1 and redis.call('HGET', document, 'token') == C then return version - 1 end
if version == tonumber(A) then redis.call('HSET', document, 'version', version + 1, 'data', B, 'token', C) end
return version
""",
    }.items()
}
"""The scripts, by name.

ARGV starts with an id and the channel for changes. KEYS starts with the keys of the run and of the document that have
this id. They are followed by the keys of the indexes and of the counter.
"""
