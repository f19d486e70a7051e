"""The Lua scripts of the Redis back end. Redis runs each script as one atomic step, with its own clock.

All keys of a deployment start with the prefix in `KEYS[1]`, which contains the hash tag. The first argument of each
script is the lifetime of a heartbeat. Scripts return times as text, because Redis truncates numbers to integers.

Workers of two releases run their own scripts on the same keys. So a release may add fields and keys, and must ignore
fields that it does not know. Any other change of the keys needs a new `LAYOUT`.
"""

from typing import Final

from dovetail.protocol.interfaces.shared_state import (
    CLOCK_MARGIN_S,
    MAX_CHANGES,
    MAX_INBOX_BYTES,
    MAX_INBOX_MESSAGES,
    MAX_READ_CHANGES,
)

LAYOUT: Final = 1  # A worker does not join a deployment with another layout.
MESSAGE_TTL_S: Final = 60.0
FOLLOWER_TTL_S: Final = 60  # A reader of a stream registers again within this time.
_IDLE_TTL_S: Final = 7 * 86400  # The keys of a deployment without workers are deleted after this time.
_KNOWN_WORKER_S: Final = 600  # The name of a lost worker is kept for this time.
_EVENT_BATCH: Final = 100

# A new epoch starts if Redis was flushed, restarted or replaced by its replica, if it deleted keys to save memory, and
# if its clock was set. Redis may have lost records in these cases, so the workers do not rely on earlier records.
_PRELUDE: Final = f"""
local prefix = KEYS[1]
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local workers = prefix .. 'workers'
local heartbeat_ttl = tonumber(ARGV[1])
-- A clock that was set back leaves times in the future. Heartbeats after this time are not valid.
local latest = now + 2 * heartbeat_ttl

local function format_time(seconds) return string.format('%.6f', seconds) end

-- Return the time since which no record of a used ID was lost.
local function read_complete_since()
  local epoch = redis.call('HMGET', prefix .. 'epoch', 'id', 'since', 'confirmed', 'confirmed_since')
  if not epoch[1] then return 0 end
  return tonumber((epoch[3] == epoch[1] and epoch[4] or epoch[2]) or 0)
end

local function start_epoch(id, run, evicted)
  -- If an operator confirms the loss before this epoch, IDs since this time are accepted again, but not those from
  -- before an earlier loss. If Redis has no records of an earlier epoch, the operator decides about all IDs.
  local confirmed_since = format_time(math.min(now, read_complete_since()))
  redis.call(
    'HSET', prefix .. 'epoch', 'id', id, 'run', run, 'evicted', evicted, 'since', format_time(now),
    'checked_at', format_time(now), 'layout', {LAYOUT}, 'confirmed_since', confirmed_since
  )
  redis.call('EXPIRE', prefix .. 'epoch', {_IDLE_TTL_S})
  return id, now, now
end

-- Return the ID of the epoch, its start, and the newest time at which a worker has checked the clock.
local function read_epoch(new_id, must_start)
  local info = redis.call('INFO', 'server', 'stats')
  local run, evicted = string.match(info, 'run_id:(%x+)'), string.match(info, 'evicted_keys:(%d+)')
  local epoch = redis.call('HMGET', prefix .. 'epoch', 'id', 'run', 'evicted', 'since', 'checked_at')
  local since, checked_at = tonumber(epoch[4] or 0), tonumber(epoch[5] or 0)
  local is_valid = epoch[1] and epoch[2] == run and epoch[3] == evicted and since <= now and checked_at <= now + 5
  if must_start or not is_valid then return start_epoch(new_id, run, evicted) end
  return epoch[1], since, checked_at
end

local function is_alive(score) return score > now and score <= latest end

local function has_heartbeat()
  return #redis.call('ZREVRANGEBYSCORE', workers, format_time(latest), format_time(now), 'LIMIT', 0, 1) > 0
end

-- Return 'alive', 'lost', or 'unknown' if the worker may only have had no chance to send its heartbeat.
local function judge(worker, new_id)
  local score = tonumber(redis.call('ZSCORE', workers, worker) or 0)
  if is_alive(score) then return 'alive' end
  if score < 0 then return 'lost' end
  local _, since = read_epoch(new_id)
  local settled_at = tonumber(redis.call('HGET', prefix .. 'epoch', 'settled_at') or 0)
  if now < since + heartbeat_ttl or is_alive(settled_at) or not has_heartbeat() then return 'unknown' end
  return 'lost'
end

-- Tell the workers that read a stream that it has changed. The set names the streams of a worker that have changed.
-- The entry wakes the blocking read of the worker, and exists as long as the set.
local function wake_followers(stream)
  local followers = prefix .. 'followers:' .. stream
  for _, worker in ipairs(redis.call('SMEMBERS', followers)) do
    if is_alive(tonumber(redis.call('ZSCORE', workers, worker) or 0)) then
      local streams, entry = prefix .. 'woken:' .. worker, prefix .. 'wakeups:' .. worker
      redis.call('SADD', streams, stream)
      if redis.call('EXISTS', entry) == 0 then redis.call('XADD', entry, '*', 'woken', '') end
      redis.call('EXPIRE', streams, {MESSAGE_TTL_S:.0f})
      redis.call('EXPIRE', entry, {MESSAGE_TTL_S:.0f})
    else
      redis.call('SREM', followers, worker)
    end
  end
end
"""

# ARGV: worker, new epoch id, newest time of Redis that this worker has checked, or '', ID of the newest secret key
# This script must work even if Redis is full. Otherwise all workers would count as lost.
BEAT: Final = f"""#!lua flags=allow-oom
{_PRELUDE}
local layout = redis.call('HGET', prefix .. 'epoch', 'layout') or '{LAYOUT}'
if layout ~= '{LAYOUT}' then
  return redis.error_reply('LAYOUT ' .. layout .. ' of a newer release is in use, and this release needs {LAYOUT}')
end
local epoch, since, checked_at = read_epoch(ARGV[3])
if ARGV[4] ~= '' then
  if tonumber(ARGV[4]) > checked_at then redis.call('HSET', prefix .. 'epoch', 'checked_at', ARGV[4]) end
elseif now - checked_at > {CLOCK_MARGIN_S} then
  -- No worker was there for a while, so nobody knows whether the clock was set.
  epoch, since, checked_at = read_epoch(ARGV[3], true)
end
if not has_heartbeat() then
  -- No worker could send a heartbeat for a while, so all others get time to send theirs.
  redis.call('HSET', prefix .. 'epoch', 'settled_at', format_time(now + heartbeat_ttl))
end
redis.call('ZADD', workers, format_time(now + heartbeat_ttl), ARGV[2])
redis.call('ZREMRANGEBYSCORE', workers, -(now - {_KNOWN_WORKER_S}), now - {_KNOWN_WORKER_S})
redis.call('ZREMRANGEBYSCORE', workers, '(' .. format_time(latest), '+inf')
-- The keys with which the workers encrypt, each until the last heartbeat of its workers ends.
redis.call('ZADD', prefix .. 'key_ids', format_time(now + heartbeat_ttl), ARGV[5])
for _, name in ipairs({{'epoch', 'workers', 'changes', 'change_count', 'key_ids'}}) do
  redis.call('EXPIRE', prefix .. name, {_IDLE_TTL_S})
end
redis.call('ZREMRANGEBYSCORE', prefix .. 'key_ids', '-inf', format_time(now))
local newest_change = redis.call('XREVRANGE', prefix .. 'changes', '+', '-', 'COUNT', 1)
return {{
  epoch, redis.call('GET', prefix .. 'change_count') or '0', newest_change[1] and newest_change[1][1] or '0-0',
  redis.call('ZCOUNT', workers, format_time(now), format_time(latest)), format_time(now),
  redis.call('ZRANGEBYSCORE', prefix .. 'key_ids', format_time(now), format_time(latest))
}}
"""

# ARGV: new epoch id, time before the clock was set forward. Only the first worker starts a new epoch.
START_EPOCH: Final = f"""#!lua flags=allow-oom
{_PRELUDE}
local _, since = read_epoch(ARGV[2])
if since <= tonumber(ARGV[3]) then read_epoch(ARGV[2], true) end
"""

# ARGV: worker
LEAVE: Final = f"""#!lua flags=allow-oom
{_PRELUDE}
redis.call('ZADD', workers, format_time(-now), ARGV[2])
for _, name in ipairs({{'inbox:', 'inbox_bytes:', 'large:', 'woken:', 'wakeups:'}}) do
  redis.call('UNLINK', prefix .. name .. ARGV[2])
end
"""

LIST_WORKERS: Final = f"""
{_PRELUDE}
return redis.call('ZRANGEBYSCORE', workers, format_time(now), format_time(latest))
"""

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

# ARGV: epoch. An operator accepts IDs from before this epoch again, since `confirmed_since`. Return 0 if another epoch
# has started.
CONFIRM_LOSS: Final = f"""
{_PRELUDE}
if redis.call('HGET', prefix .. 'epoch', 'id') ~= ARGV[2] then return 0 end
redis.call('HSET', prefix .. 'epoch', 'confirmed', ARGV[2])
return 1
"""

# Return the epoch, its start, the epoch that an operator has confirmed, and the number of workers.
READ_DEPLOYMENT: Final = f"""#!lua flags=no-writes
{_PRELUDE}
local epoch = redis.call('HMGET', prefix .. 'epoch', 'id', 'since', 'confirmed')
return {{epoch[1], epoch[2], epoch[3], redis.call('ZCOUNT', workers, format_time(now), format_time(latest))}}
"""

# ARGV: name, earliest time of use, ttl in ms, new epoch id, attempt or '', epoch in which the ID was created or ''
# Each worker checks the clock with its heartbeats. If no worker has done this for a while, the clock was set forward,
# and used IDs may have expired too early. The reply is 'unknown' and the epoch then. IDs from before the epoch are
# unknown, too, unless an operator has confirmed the loss.
USE_ONCE: Final = f"""
{_PRELUDE}
local key = prefix .. 'used:' .. ARGV[2]
local epoch, _, checked_at = read_epoch(ARGV[5])
local attempt = redis.call('GET', key)
if attempt then return attempt ~= '' and attempt == ARGV[6] and 'first' or 'used' end
if now - checked_at > {CLOCK_MARGIN_S} then return {{'unknown', epoch}} end
if ARGV[7] ~= epoch and tonumber(ARGV[3]) - {CLOCK_MARGIN_S} < read_complete_since() then
  return {{'unknown', epoch}}
end
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
if cost >= 0 and wait > 0.000001 then return format_time(wait) end
if cost == 0 then return '0' end
local full_at = math.max(now, start + cost * interval)
redis.call('SET', key, format_time(full_at), 'PX', math.max(1, math.ceil((full_at - now) * 1000)))
return '0'
"""

# ARGV: name, holder, limit, ttl in ms, or 0 if the place belongs to a worker, the worker, new epoch id
# Places need little memory and are limited, so a full Redis still counts them.
ACQUIRE: Final = f"""#!lua flags=allow-oom
{_PRELUDE}
local key, owners = prefix .. 'places:' .. ARGV[2], prefix .. 'place_workers:' .. ARGV[2]
redis.call('ZREMRANGEBYSCORE', key, '-inf', format_time(now))
local limit, ttl = tonumber(ARGV[4]), tonumber(ARGV[5])
if not redis.call('ZSCORE', key, ARGV[3]) and redis.call('ZCARD', key) >= limit then
  local holders, states = redis.call('HGETALL', owners), {{}}
  for index = 1, #holders, 2 do
    local owner = holders[index + 1]
    states[owner] = states[owner] or judge(owner, ARGV[7])
    if states[owner] == 'lost' then
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
  redis.call('ZADD', key, '+inf', ARGV[3])
else
  redis.call('HDEL', owners, ARGV[3])
  redis.call('ZADD', key, format_time(now + ttl / 1000), ARGV[3])
end
redis.call('PEXPIRE', key, string.format('%.0f', math.max(redis.call('PTTL', key), ttl)))
return 1
"""

# ARGV: name, holder
RELEASE: Final = f"""
{_PRELUDE}
redis.call('ZREM', prefix .. 'places:' .. ARGV[2], ARGV[3])
redis.call('HDEL', prefix .. 'place_workers:' .. ARGV[2], ARGV[3])
"""

# ARGV: worker, field ('data' or 'large'), data, new epoch id, size
SEND: Final = f"""
{_PRELUDE}
local state = judge(ARGV[2], ARGV[5])
if state ~= 'alive' then return state end
local inbox, size_key, large = prefix .. 'inbox:' .. ARGV[2], prefix .. 'inbox_bytes:' .. ARGV[2], ARGV[3] == 'large'
local size = tonumber(ARGV[6])
if redis.call('XLEN', inbox) >= {MAX_INBOX_MESSAGES} then return 'full' end
if tonumber(redis.call('GET', size_key) or 0) + size > {MAX_INBOX_BYTES} then return 'full' end
redis.call('INCRBY', size_key, size)
redis.call('EXPIRE', size_key, {MESSAGE_TTL_S:.0f})
local id = redis.call('XADD', inbox, '*', ARGV[3], large and '1' or ARGV[4], 'size', size)
redis.call('EXPIRE', inbox, {MESSAGE_TTL_S:.0f})
if large then
  redis.call('HSET', prefix .. 'large:' .. ARGV[2], id, ARGV[4])
  redis.call('EXPIRE', prefix .. 'large:' .. ARGV[2], {MESSAGE_TTL_S:.0f})
end
return 'sent'
"""

# ARGV: worker, total size of the messages, IDs of the messages
DELETE_MESSAGES: Final = f"""#!lua flags=allow-oom
{_PRELUDE}
local inbox, size_key = prefix .. 'inbox:' .. ARGV[2], prefix .. 'inbox_bytes:' .. ARGV[2]
local deleted = redis.call('XDEL', inbox, unpack(ARGV, 4))
redis.call('HDEL', prefix .. 'large:' .. ARGV[2], unpack(ARGV, 4))
if redis.call('XLEN', inbox) == 0 then
  redis.call('UNLINK', size_key)
elseif deleted == #ARGV - 3 and redis.call('EXISTS', size_key) == 1 then
  redis.call('DECRBY', size_key, ARGV[3])
end
"""

# ARGV: worker
TAKE_WAKEUPS: Final = f"""
{_PRELUDE}
local streams = redis.call('SMEMBERS', prefix .. 'woken:' .. ARGV[2])
redis.call('UNLINK', prefix .. 'woken:' .. ARGV[2], prefix .. 'wakeups:' .. ARGV[2])
return streams
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
local function get_stream_keys(stream)
  return prefix .. 'stream:' .. stream, prefix .. 'events:' .. stream, prefix .. 'large:' .. stream
end

local function get_field(fields, name)
  for index = 1, #fields, 2 do
    if fields[index] == name then return fields[index + 1] end
  end
end

-- Large events have a field in a separate hash, so that a reader gets them one by one.
local function add_event(stream, meta, number, field, data, size, is_last, writer, ttl, max_events, max_bytes)
  local meta_key, events, larges = get_stream_keys(stream)
  local first, stored_bytes, large = meta.first, meta.stored_bytes + size, field == 'large'
  redis.call('XADD', events, number .. '-0', field, large and '1' or data, 'size', size, 'last', is_last)
  if large then redis.call('HSET', larges, number, data) end
  while first < number and (number - first >= max_events or stored_bytes > max_bytes) do
    local oldest = redis.call('XRANGE', events, '-', '+', 'COUNT', 1)[1]
    if not oldest then break end
    redis.call('XDEL', events, oldest[1])
    redis.call('HDEL', larges, first)
    stored_bytes = stored_bytes - tonumber(get_field(oldest[2], 'size') or 0)
    first = first + 1
  end
  redis.call('HSET', meta_key, 'first', first, 'last', number, 'bytes', stored_bytes)
  if is_last == '1' then redis.call('HSET', meta_key, 'ended_by', writer) end
  for _, key in ipairs({meta_key, events, larges}) do redis.call('PEXPIRE', key, ttl) end
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

# ARGV: ttl in ms, streams
RENEW_STREAMS: Final = f"""
{_PRELUDE}
{_ADD_EVENT}
for index = 3, #ARGV do
  for _, key in ipairs({{get_stream_keys(ARGV[index])}}) do redis.call('PEXPIRE', key, ARGV[2]) end
end
"""

# ARGV: stream
DELETE_STREAM: Final = f"""#!lua flags=allow-oom
{_PRELUDE}
{_ADD_EVENT}
redis.call('UNLINK', get_stream_keys(ARGV[2]))
wake_followers(ARGV[2])
"""

# ARGV: stream, data, worker, ttl in ms, new epoch id, expected number
# If Redis is full, a reader must still learn that the writer is lost.
END_LOST_STREAM: Final = f"""#!lua flags=allow-oom
{_PRELUDE}
{_ADD_EVENT}
local meta = read_meta(ARGV[2])
if not meta or meta.ended_by or meta.last + 1 ~= tonumber(ARGV[7]) then return 'ended' end
local state = judge(meta.writer, ARGV[6])
if state ~= 'lost' then return state end
add_event(ARGV[2], meta, meta.last + 1, 'data', ARGV[3], #ARGV[3], '1', ARGV[4], ARGV[5], math.huge, math.huge)
return 'added'
"""

# ARGV: stream, number, the worker to wake after the next event, or ''
READ_STREAM: Final = f"""
{_PRELUDE}
if ARGV[4] ~= '' then
  -- If Redis is full, this fails, and the reader polls.
  local followers = prefix .. 'followers:' .. ARGV[2]
  redis.pcall('SADD', followers, ARGV[4])
  if redis.call('TTL', followers) < {FOLLOWER_TTL_S // 2} then
    redis.call('EXPIRE', followers, {FOLLOWER_TTL_S})
  end
end
local fields = redis.call('HMGET', prefix .. 'stream:' .. ARGV[2], 'writer', 'header', 'first', 'last', 'ended_by')
local after = tonumber(ARGV[3])
if not fields[3] or after < tonumber(fields[3]) - 1 or after > tonumber(fields[4]) then return false end
local events = redis.call(
  'XRANGE', prefix .. 'events:' .. ARGV[2], (after + 1) .. '-0', '+', 'COUNT', {_EVENT_BATCH}
)
return {{fields[1], fields[2], tonumber(fields[4]), fields[5] and 1 or 0, events}}
"""
