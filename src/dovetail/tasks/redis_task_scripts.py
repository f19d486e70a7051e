"""The Lua scripts of the Redis task store. Redis runs each script as one atomic step.

`KEYS[1]` is the prefix of all keys. NAME is a digest of a task ID, because the ID of a task can be a secret. These keys
exist:

- `task:NAME`, a hash with the record, the encoded ID, and the fields that scripts need. Read `version`, the lease and
  `expires_at` only from the fields, because their values in the record may be outdated.
- `due:SERVER`, a sorted set with the time at which each task is due
- `expiry`, a sorted set with the time until which each task is kept. Its members are `NAME|SERVER|OWNER`
- `created`, a sorted set with the creation time of each task
- `open:OWNER`, a set with the unfinished tasks of an owner
- `sizes` and `bytes`, the size of each record and of all records
- `format`, the version of this layout

Times are texts with 17 digits, because Redis truncates numbers to integers.
"""

from typing import Final

from dovetail.tasks.task_rules import UNFINISHED_RETENTION_S

STORE_FORMAT: Final = 1
EXPIRE_BATCH: Final = 200
# Workers delete records that have expired. If no worker runs, Redis deletes them after this additional time.
_DELETE_AFTER_S: Final = 3600
_MAX_TTL_MS: Final = 10**14

_PRELUDE: Final = f"""
local prefix = KEYS[1]
local stored_format = redis.call('GET', prefix .. 'format')
if stored_format and stored_format ~= '{STORE_FORMAT}' then
  return redis.error_reply('TASKFORMAT ' .. stored_format)
end

local function to_text(number) return string.format('%.17g', number) end

-- Return the time to live for a time until which something is kept.
local function get_ttl(keep_until, now)
  if keep_until == math.huge then return nil end
  return string.format('%.0f', math.min(math.max(keep_until - now + {_DELETE_AFTER_S}, 1) * 1000, {_MAX_TTL_MS}))
end

local function set_ttl(key, ttl, is_longer_only)
  if not ttl then
    redis.call('PERSIST', key)
  elseif is_longer_only then
    redis.call('PEXPIRE', key, ttl, 'GT')
  else
    redis.call('PEXPIRE', key, ttl)
  end
end

-- Add to a key that several tasks share. The key is kept as long as the task that is kept longest.
local function add_shared(ttl, command, key, ...)
  local exists = redis.call('EXISTS', key) == 1
  redis.call(command, key, ...)
  set_ttl(key, ttl, exists)
end

-- Store when a task is due, and how long it is kept. `task` has the fields of the hash as texts, or false.
local function index(name, task, now)
  local keep_until = math.huge
  if task.expires_at then
    keep_until = tonumber(task.expires_at) + (task.is_final == '1' and 0 or {UNFINISHED_RETENTION_S:.0f})
    keep_until = math.max(keep_until, tonumber(task.lease_expires_at or 0))
  end
  local ttl = get_ttl(keep_until, now)
  set_ttl(prefix .. 'task:' .. name, ttl, false)
  redis.call('ZADD', prefix .. 'expiry', to_text(keep_until), name .. '|' .. task.server .. '|' .. task.owner)
  local due_key, open_key = prefix .. 'due:' .. task.server, prefix .. 'open:' .. task.owner
  if task.due_at then
    add_shared(ttl, 'ZADD', due_key, task.due_at, name)
  else
    redis.call('ZREM', due_key, name)
  end
  if task.owner ~= '' then
    if task.is_final == '1' then
      redis.call('SREM', open_key, name)
    else
      add_shared(ttl, 'SADD', open_key, name)
    end
  end
  return ttl
end

local function set_or_delete(key, field, value)
  if value then redis.call('HSET', key, field, value) else redis.call('HDEL', key, field) end
end

local function store(name, task, record)
  local key = prefix .. 'task:' .. name
  redis.call(
    'HSET', key, 'version', task.version, 'status', task.status, 'is_final', task.is_final,
    'is_cancel_requested', task.is_cancel_requested, 'server', task.server, 'owner', task.owner, 'record', record
  )
  for _, field in ipairs({{'expires_at', 'retention', 'lease_holder', 'lease_expires_at', 'due_at'}}) do
    set_or_delete(key, field, task[field])
  end
  local size = #record
  local difference = size - tonumber(redis.call('HGET', prefix .. 'sizes', name) or 0)
  redis.call('HSET', prefix .. 'sizes', name, size)
  redis.call('INCRBY', prefix .. 'bytes', difference)
  -- `pcall` ignores an error, for example if the user may not use channels. Watchers then poll.
  redis.pcall('PUBLISH', prefix .. 'changed:' .. name, task.version)
end

local function read(name)
  local fields = redis.call(
    'HMGET', prefix .. 'task:' .. name, 'version', 'expires_at', 'lease_holder', 'lease_expires_at', 'record'
  )
  return fields[1] and fields or false
end

-- Read the fields of a task from the arguments. An empty text is a missing value.
local function parse_task(start)
  local names = {{
    'version', 'status', 'is_final', 'is_cancel_requested', 'server', 'owner', 'expires_at', 'retention', 'due_at',
    'lease_holder', 'lease_expires_at'
  }}
  local task = {{}}
  for position, name in ipairs(names) do
    local value = ARGV[start + position - 1]
    task[name] = (value ~= '' or name == 'owner') and value
  end
  return task
end
"""

# ARGV: name, created_at, updated_at, record, max tasks, max tasks of an owner, max bytes, fields of the task, ID
CREATE: Final = f"""
{_PRELUDE}
local name, created_at, now, record = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local task = parse_task(8)
local current = read(name)
if current then return {{'conflict', current}} end
if task.owner ~= '' then
  local count = redis.call('SCARD', prefix .. 'open:' .. task.owner)
  if count >= tonumber(ARGV[6]) then return {{'owner full', count}} end
end
local count = redis.call('ZCARD', prefix .. 'created')
if count >= tonumber(ARGV[5]) then return {{'full', count}} end
local total = tonumber(redis.call('GET', prefix .. 'bytes') or 0)
if total + #record > tonumber(ARGV[7]) then return {{'bytes full', total}} end
local exists = stored_format and true
store(name, task, record)
redis.call('HSET', prefix .. 'task:' .. name, 'id', ARGV[19])
redis.call('ZADD', prefix .. 'created', created_at, name)
if not exists then redis.call('SET', prefix .. 'format', '{STORE_FORMAT}') end
local ttl = index(name, task, now)
for _, key in ipairs({{'expiry', 'created', 'sizes', 'bytes', 'format'}}) do set_ttl(prefix .. key, ttl, exists) end
return {{'created'}}
"""

# ARGV: name, expected version, expected holder and expiry of the lease or '*', updated_at, record, fields of the task
# Results must be stored even if Redis is full, so that finished work is not lost.
CHANGE: Final = f"""#!lua flags=allow-oom
{_PRELUDE}
local name, now, record = ARGV[1], tonumber(ARGV[5]), ARGV[6]
local task = parse_task(7)
local current = read(name)
if not current or current[1] ~= ARGV[2] then return {{'conflict', current}} end
if ARGV[3] ~= '*' then
  -- `renew` may have extended the lease, which does not change the version.
  if (current[3] or '') ~= ARGV[3] or tonumber(current[4] or 0) ~= tonumber(ARGV[4]) then
    return {{'conflict', current}}
  end
end
if task.lease_holder and task.lease_holder == current[3] then
  task.lease_expires_at = to_text(math.max(tonumber(task.lease_expires_at), tonumber(current[4])))
  if task.due_at then task.due_at = task.lease_expires_at end
end
if task.expires_at and current[2] then
  task.expires_at = to_text(math.max(tonumber(task.expires_at), tonumber(current[2])))
end
store(name, task, record)
index(name, task, now)
return {{'changed', task.expires_at, task.lease_expires_at}}
"""

# ARGV: now, end of the leases, then the name and the holder of each task. `extend_expiry` has the same rule.
RENEW: Final = f"""#!lua flags=allow-oom
{_PRELUDE}
local now, lease_expires_at = tonumber(ARGV[1]), ARGV[2]
local held = {{}}
for position = 3, #ARGV, 2 do
  local name, key = ARGV[position], prefix .. 'task:' .. ARGV[position]
  local fields = redis.call(
    'HMGET', key, 'lease_holder', 'is_cancel_requested', 'expires_at', 'retention', 'server', 'owner', 'is_final',
    'due_at'
  )
  if fields[1] and fields[1] == ARGV[position + 1] then
    local task = {{
      expires_at = fields[3], server = fields[5], owner = fields[6], is_final = fields[7],
      lease_expires_at = lease_expires_at, due_at = fields[8] and lease_expires_at
    }}
    local retention = tonumber(fields[4] or 0)
    if task.expires_at and fields[4] and tonumber(task.expires_at) < now + retention / 2 then
      task.expires_at = to_text(now + retention)
    end
    redis.call('HSET', key, 'lease_expires_at', lease_expires_at)
    set_or_delete(key, 'expires_at', task.expires_at)
    set_or_delete(key, 'due_at', task.due_at)
    index(name, task, now)
    held[#held + 1] = {{name, fields[2]}}
  end
end
return held
"""

# ARGV: server, now, limit. Returns the name and the encoded ID of each task.
LIST_DUE: Final = f"""
{_PRELUDE}
local due_key, tasks = prefix .. 'due:' .. ARGV[1], {{}}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', due_key, '-inf', ARGV[2], 'LIMIT', 0, ARGV[3])) do
  local id = redis.call('HGET', prefix .. 'task:' .. name, 'id')
  if id then
    tasks[#tasks + 1] = {{name, id}}
  else
    redis.call('ZREM', due_key, name)
  end
end
return tasks
"""

# ARGV: name, time. Only if the task is due.
DELAY: Final = f"""
{_PRELUDE}
local server = redis.call('HGET', prefix .. 'task:' .. ARGV[1], 'server')
if server then redis.call('ZADD', prefix .. 'due:' .. server, 'XX', ARGV[2], ARGV[1]) end
"""

# ARGV: now. Returns the number of deleted tasks.
EXPIRE: Final = f"""#!lua flags=allow-oom
{_PRELUDE}
local count = 0
for _, member in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'expiry', '-inf', ARGV[1], 'LIMIT', 0, {EXPIRE_BATCH})) do
  local name, server, owner = string.match(member, '^(.*)|(.*)|(.*)$')
  redis.call('UNLINK', prefix .. 'task:' .. name)
  redis.call('ZREM', prefix .. 'expiry', member)
  redis.call('ZREM', prefix .. 'created', name)
  redis.call('ZREM', prefix .. 'due:' .. server, name)
  if owner ~= '' then redis.call('SREM', prefix .. 'open:' .. owner, name) end
  redis.call('DECRBY', prefix .. 'bytes', redis.call('HGET', prefix .. 'sizes', name) or 0)
  redis.call('HDEL', prefix .. 'sizes', name)
  redis.pcall('PUBLISH', prefix .. 'changed:' .. name, '')
  count = count + 1
end
-- Changes may have extended the time of tasks, so the keys that all tasks share must be kept longer, too.
local last = redis.call('ZREVRANGE', prefix .. 'expiry', 0, 0, 'WITHSCORES')
if last[2] then
  local ttl = get_ttl(tonumber(last[2]), tonumber(ARGV[1]))
  for _, key in ipairs({{'expiry', 'created', 'sizes', 'bytes', 'format'}}) do set_ttl(prefix .. key, ttl, true) end
end
return count
"""

# ARGV: first position, number of tasks, statuses. Returns how many tasks were read, and the encoded IDs of some.
LIST_IDS: Final = f"""
{_PRELUDE}
local first, count = tonumber(ARGV[1]), tonumber(ARGV[2])
local names = redis.call('ZREVRANGE', prefix .. 'created', first, first + count - 1)
local matching = {{}}
for _, name in ipairs(names) do
  local fields = redis.call('HMGET', prefix .. 'task:' .. name, 'status', 'id')
  local is_wanted = fields[1] and #ARGV == 2
  for position = 3, #ARGV do is_wanted = is_wanted or fields[1] == ARGV[position] end
  if is_wanted then matching[#matching + 1] = fields[2] end
end
return {{#names, matching}}
"""

# ARGV: names. Returns the version of each task, or an empty text.
READ_VERSIONS: Final = f"""
{_PRELUDE}
local versions = {{}}
for position, name in ipairs(ARGV) do
  versions[position] = redis.call('HGET', prefix .. 'task:' .. name, 'version') or ''
end
return versions
"""
