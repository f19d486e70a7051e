"""The Lua scripts of the Redis back end. Redis runs each script as one atomic step, with its own clock.

All keys of a deployment start with the prefix in `KEYS[1]`, which contains the hash tag. The first argument of each
script is the lifetime of a heartbeat. Scripts return times as text, because Redis truncates numbers to integers.
"""

from typing import Final

from dovetail.protocol.shared_state import (
    CLOCK_MARGIN_S,
    MAX_CHANGES,
    MAX_INBOX_BYTES,
    MAX_INBOX_MESSAGES,
    MAX_READ_CHANGES,
)

MESSAGE_TTL_S: Final = 60.0
_IDLE_TTL_S: Final = 7 * 86400  # The keys of a deployment without workers are deleted after this time.
_KNOWN_WORKER_S: Final = 600  # The name of a lost worker is kept for this time.
_EVENT_BATCH: Final = 100

# A new epoch starts if Redis was flushed, restarted or replaced by its replica.
# Redis may have lost records in these cases, so the workers do not rely on records from an earlier epoch.
_PRELUDE: Final = f"""
local prefix = KEYS[1]
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local workers = prefix .. 'workers'
local heartbeat_ttl = tonumber(ARGV[1])

local function read_epoch(new_id)
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  local epoch = redis.call('HMGET', prefix .. 'epoch', 'id', 'run', 'since')
  if epoch[1] and epoch[2] == run then
    return epoch[1], tonumber(epoch[3])
  end
  redis.call('HSET', prefix .. 'epoch', 'id', new_id, 'run', run, 'since', string.format('%.6f', now))
  return new_id, now
end

-- Return 'alive', 'lost', or 'unknown' if the worker may only have had no chance to send its heartbeat.
local function judge(worker, new_id)
  local score = tonumber(redis.call('ZSCORE', workers, worker) or 0)
  if score > now then return 'alive' end
  if score < 0 then return 'lost' end
  local _, since = read_epoch(new_id)
  local newest = redis.call('ZREVRANGE', workers, 0, 0, 'WITHSCORES')
  local settled_at = tonumber(redis.call('HGET', prefix .. 'epoch', 'settled_at') or 0)
  if now < since + heartbeat_ttl or now < settled_at or not newest[2] or tonumber(newest[2]) <= now then
    return 'unknown'
  end
  return 'lost'
end

local function add_to_inbox(worker, field, value, size)
  local inbox, size_key = prefix .. 'inbox:' .. worker, prefix .. 'inbox_bytes:' .. worker
  if redis.call('XLEN', inbox) >= {MAX_INBOX_MESSAGES} then return false end
  if size > 0 then
    if tonumber(redis.call('GET', size_key) or 0) + size > {MAX_INBOX_BYTES} then return false end
    redis.call('INCRBY', size_key, size)
    redis.call('EXPIRE', size_key, {MESSAGE_TTL_S:.0f})
  end
  redis.call('XADD', inbox, '*', field, value, 'size', size)
  redis.call('EXPIRE', inbox, {MESSAGE_TTL_S:.0f})
  return true
end

local function wake_followers(stream)
  for _, worker in ipairs(redis.call('SMEMBERS', prefix .. 'followers:' .. stream)) do
    add_to_inbox(worker, 'wake', stream, 0)
  end
end
"""

# ARGV: worker, new epoch id
# This script must work even if Redis is full. Otherwise all workers would count as lost.
BEAT: Final = f"""#!lua flags=allow-oom
{_PRELUDE}
local epoch, since = read_epoch(ARGV[3])
local newest = redis.call('ZREVRANGE', workers, 0, 0, 'WITHSCORES')
if not newest[2] or tonumber(newest[2]) <= now then
  -- No worker could send a heartbeat for a while, so all others get time to send theirs.
  redis.call('HSET', prefix .. 'epoch', 'settled_at', string.format('%.6f', now + heartbeat_ttl))
end
redis.call('ZADD', workers, string.format('%.6f', now + heartbeat_ttl), ARGV[2])
redis.call('ZREMRANGEBYSCORE', workers, -(now - {_KNOWN_WORKER_S}), now - {_KNOWN_WORKER_S})
for _, name in ipairs({{'epoch', 'workers', 'changes', 'change_count'}}) do
  redis.call('EXPIRE', prefix .. name, {_IDLE_TTL_S})
end
local newest_change = redis.call('XREVRANGE', prefix .. 'changes', '+', '-', 'COUNT', 1)
return {{
  epoch, redis.call('GET', prefix .. 'change_count') or '0', newest_change[1] and newest_change[1][1] or '0-0',
  redis.call('ZCOUNT', workers, now, '+inf'), string.format('%.6f', now)
}}
"""

# ARGV: worker
LEAVE: Final = f"""#!lua flags=allow-oom
{_PRELUDE}
redis.call('ZADD', workers, string.format('%.6f', -now), ARGV[2])
redis.call('UNLINK', prefix .. 'inbox:' .. ARGV[2])
"""

LIST_WORKERS: Final = f"{_PRELUDE} return redis.call('ZRANGEBYSCORE', workers, now, '+inf')"

# ARGV: worker, new epoch id
JUDGE: Final = f"{_PRELUDE} return judge(ARGV[2], ARGV[3])"

# ARGV: name, data, ttl in ms, expected version or ''
WRITE: Final = f"""
{_PRELUDE}
local key = prefix .. 'value:' .. ARGV[2]
local present = redis.call('HGET', key, 'version') or '0'
if ARGV[5] ~= '' and ARGV[5] ~= present then return false end
local version = string.format('%.0f', math.max(tonumber(present) + 1, math.floor(now * 1000000)))
redis.call('HSET', key, 'version', version, 'data', ARGV[3])
redis.call('PEXPIRE', key, ARGV[4])
return version
"""

# ARGV: name, data, ttl in ms, version
RESTORE: Final = f"""
{_PRELUDE}
local key = prefix .. 'value:' .. ARGV[2]
if tonumber(redis.call('HGET', key, 'version') or '0') >= tonumber(ARGV[5]) then return 0 end
redis.call('HSET', key, 'version', ARGV[5], 'data', ARGV[3])
redis.call('PEXPIRE', key, ARGV[4])
return 1
"""

# ARGV: name, expected version or ''
DELETE: Final = f"""
{_PRELUDE}
local key = prefix .. 'value:' .. ARGV[2]
if ARGV[3] ~= '' and redis.call('HGET', key, 'version') ~= ARGV[3] then return 0 end
return redis.call('UNLINK', key)
"""

# ARGV: name, earliest time of use, ttl in ms, new epoch id, attempt or '', epoch in which the ID was created or ''
USE_ONCE: Final = f"""
{_PRELUDE}
local key = prefix .. 'used:' .. ARGV[2]
local epoch, since = read_epoch(ARGV[5])
local attempt = redis.call('GET', key)
if attempt then return attempt ~= '' and attempt == ARGV[6] and 'first' or 'used' end
if ARGV[7] ~= epoch and tonumber(ARGV[3]) - {CLOCK_MARGIN_S} < since then return 'unknown' end
redis.call('SET', key, ARGV[6], 'PX', tonumber(ARGV[4]) + {CLOCK_MARGIN_S * 1000:.0f})
return 'first'
"""

# ARGV: name, rate, burst, cost. The same algorithm as `take_cell` in gcra.py
TAKE: Final = f"""
{_PRELUDE}
local key = prefix .. 'rate:' .. ARGV[2]
local interval, cost = 1 / tonumber(ARGV[3]), tonumber(ARGV[5])
local tolerance = math.max(tonumber(ARGV[4]), 1) * interval
local start = math.max(now, math.min(tonumber(redis.call('GET', key) or now), now + tolerance))
local wait = start + (cost == 0 and 1 or cost) * interval - now - tolerance
if cost >= 0 and wait > 0.000001 then return string.format('%.6f', wait) end
if cost == 0 then return '0' end
local full_at = math.max(now, start + cost * interval)
redis.call('SET', key, string.format('%.6f', full_at), 'PX', math.max(1, math.ceil((full_at - now) * 1000)))
return '0'
"""

# ARGV: name, holder, limit, ttl in ms, or 0 if the place belongs to a worker, the worker, new epoch id
ACQUIRE: Final = f"""
{_PRELUDE}
local key, owners = prefix .. 'places:' .. ARGV[2], prefix .. 'place_workers:' .. ARGV[2]
redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.6f', now))
local limit, ttl = tonumber(ARGV[4]), tonumber(ARGV[5])
if not redis.call('ZSCORE', key, ARGV[3]) and redis.call('ZCARD', key) >= limit then
  local holders = redis.call('HGETALL', owners)
  for index = 1, #holders, 2 do
    if judge(holders[index + 1], ARGV[7]) == 'lost' then
      redis.call('ZREM', key, holders[index])
      redis.call('HDEL', owners, holders[index])
    end
  end
  if redis.call('ZCARD', key) >= limit then return 0 end
end
if ARGV[6] ~= '' then
  ttl = {_IDLE_TTL_S} * 1000
  redis.call('HSET', owners, ARGV[3], ARGV[6])
  redis.call('PEXPIRE', owners, ttl)
else
  redis.call('HDEL', owners, ARGV[3])
end
redis.call('ZADD', key, string.format('%.6f', now + ttl / 1000), ARGV[3])
redis.call('PEXPIRE', key, string.format('%.0f', math.max(redis.call('PTTL', key), ttl)))
return 1
"""

# ARGV: name, holder
RELEASE: Final = f"""
{_PRELUDE}
redis.call('ZREM', prefix .. 'places:' .. ARGV[2], ARGV[3])
redis.call('HDEL', prefix .. 'place_workers:' .. ARGV[2], ARGV[3])
"""

# ARGV: worker, field ('data' or 'large'), value, new epoch id, size
SEND: Final = f"""
{_PRELUDE}
local state = judge(ARGV[2], ARGV[5])
if state ~= 'alive' then return state end
return add_to_inbox(ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[6])) and 'sent' or 'full'
"""

# ARGV: worker, total size of the messages, IDs of the messages
DELETE_MESSAGES: Final = f"""
{_PRELUDE}
local inbox, size_key = prefix .. 'inbox:' .. ARGV[2], prefix .. 'inbox_bytes:' .. ARGV[2]
redis.call('XDEL', inbox, unpack(ARGV, 4))
if redis.call('XLEN', inbox) == 0 then
  redis.call('UNLINK', size_key)
elseif redis.call('EXISTS', size_key) == 1 then
  redis.call('DECRBY', size_key, ARGV[3])
end
"""

# ARGV: new epoch id
GET_CURSOR: Final = f"""
{_PRELUDE}
local newest = redis.call('XREVRANGE', prefix .. 'changes', '+', '-', 'COUNT', 1)
return {{
  (read_epoch(ARGV[2])), redis.call('GET', prefix .. 'change_count') or '0', newest[1] and newest[1][1] or '0-0'
}}
"""

# ARGV: data, new epoch id
PUBLISH: Final = f"""
{_PRELUDE}
local epoch = read_epoch(ARGV[3])
local number = redis.call('INCR', prefix .. 'change_count')
if number == 1 then redis.call('EXPIRE', prefix .. 'change_count', {_IDLE_TTL_S}) end
local id = redis.call('XADD', prefix .. 'changes', 'MAXLEN', '~', {MAX_CHANGES}, '*', 'number', number, 'data', ARGV[2])
if number == 1 then redis.call('EXPIRE', prefix .. 'changes', {_IDLE_TTL_S}) end
return {{epoch, tostring(number), id}}
"""

# ARGV: ID of the last change that was read, new epoch id
READ_CHANGES: Final = f"""
{_PRELUDE}
local epoch = read_epoch(ARGV[3])
return {{
  epoch, redis.call('GET', prefix .. 'change_count') or '0',
  redis.call('XRANGE', prefix .. 'changes', '(' .. ARGV[2], '+', 'COUNT', {MAX_READ_CHANGES + 1})
}}
"""

_ADD_EVENT: Final = """
-- Call a function with the key of each event of a stream that is stored separately.
local function each_large(stream, handle)
  if redis.call('HEXISTS', prefix .. 'stream:' .. stream, 'has_large') == 0 then return end
  for _, event in ipairs(redis.call('XRANGE', prefix .. 'events:' .. stream, '-', '+')) do
    if event[2][1] == 'large' then handle(prefix .. 'large:' .. event[2][2]) end
  end
end

local function add_event(stream, meta, number, field, data, size, is_last, writer, ttl, max_events, max_bytes)
  local meta_key, events = prefix .. 'stream:' .. stream, prefix .. 'events:' .. stream
  local first, stored_bytes = meta.first, meta.stored_bytes + size
  redis.call('XADD', events, number .. '-0', field, data, 'size', size, 'last', is_last)
  while first < number and (number - first >= max_events or stored_bytes > max_bytes) do
    local oldest = redis.call('XRANGE', events, '-', '+', 'COUNT', 1)[1]
    if oldest[2][1] == 'large' then redis.call('UNLINK', prefix .. 'large:' .. oldest[2][2]) end
    redis.call('XDEL', events, oldest[1])
    stored_bytes = stored_bytes - oldest[2][4]
    first = first + 1
  end
  redis.call('HSET', meta_key, 'first', first, 'last', number, 'bytes', stored_bytes)
  if field == 'large' then redis.call('HSET', meta_key, 'has_large', 1) end
  if is_last == '1' then
    redis.call('HSET', meta_key, 'ended_by', writer)
    each_large(stream, function(key) redis.call('PEXPIRE', key, ttl) end)
  end
  redis.call('PEXPIRE', meta_key, ttl)
  redis.call('PEXPIRE', events, ttl)
  wake_followers(stream)
end

local function read_meta(stream)
  local fields = redis.call('HMGET', prefix .. 'stream:' .. stream, 'first', 'last', 'bytes', 'ended_by', 'writer')
  if not fields[1] then return nil end
  return {
    first = tonumber(fields[1]), last = tonumber(fields[2]), stored_bytes = tonumber(fields[3]),
    ended_by = fields[4], writer = fields[5]
  }
end
"""

# ARGV: stream, number, field ('data' or 'large'), data, size, '1' if last, worker, ttl in ms, max events, max bytes
# If the caller passes a header, it is the last argument.
APPEND: Final = f"""
{_PRELUDE}
{_ADD_EVENT}
local stream, number, worker = ARGV[2], tonumber(ARGV[3]), ARGV[8]
local meta = read_meta(stream)
if not meta then
  if not ARGV[12] or number ~= 1 then return 'missing' end
  redis.call('HSET', prefix .. 'stream:' .. stream, 'writer', worker, 'header', ARGV[12])
  meta = {{first = 1, last = 0, stored_bytes = 0, writer = worker}}
end
if meta.writer ~= worker or meta.ended_by and meta.ended_by ~= worker then return 'ended' end
if number <= meta.last then return 'repeated' end
if meta.ended_by then return 'ended' end
if number ~= meta.last + 1 then return 'missing' end
add_event(
  stream, meta, number, ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[7], worker, ARGV[9], tonumber(ARGV[10]),
  tonumber(ARGV[11])
)
return 'added'
"""

# ARGV: stream
DELETE_STREAM: Final = f"""
{_PRELUDE}
{_ADD_EVENT}
each_large(ARGV[2], function(key) redis.call('UNLINK', key) end)
redis.call('UNLINK', prefix .. 'stream:' .. ARGV[2], prefix .. 'events:' .. ARGV[2])
wake_followers(ARGV[2])
"""

# ARGV: stream, data, worker, ttl in ms, new epoch id, expected number
END_LOST_STREAM: Final = f"""
{_PRELUDE}
{_ADD_EVENT}
local meta = read_meta(ARGV[2])
if not meta or meta.ended_by or meta.last + 1 ~= tonumber(ARGV[7]) then return 'ended' end
local state = judge(meta.writer, ARGV[6])
if state ~= 'lost' then return state end
add_event(ARGV[2], meta, meta.last + 1, 'data', ARGV[3], #ARGV[3], '1', ARGV[4], ARGV[5], math.huge, math.huge)
return 'added'
"""

# ARGV: stream, number
READ_STREAM: Final = f"""
{_PRELUDE}
local fields = redis.call('HMGET', prefix .. 'stream:' .. ARGV[2], 'writer', 'header', 'first', 'last', 'ended_by')
local after = tonumber(ARGV[3])
if not fields[3] or after < tonumber(fields[3]) - 1 or after > tonumber(fields[4]) then return false end
local events = redis.call(
  'XRANGE', prefix .. 'events:' .. ARGV[2], (after + 1) .. '-0', '+', 'COUNT', {_EVENT_BATCH}
)
return {{fields[1], fields[2], tonumber(fields[4]), fields[5] and 1 or 0, events}}
"""
