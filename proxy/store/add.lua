#!lua
-- KEYS: sum. ARGV: ttl in ms, what no amount may exceed, then amounts by name, in turns.
local most = tonumber(ARGV[2])
for i = 3, #ARGV, 2 do
    local value = (tonumber(redis.call('HGET', KEYS[1], ARGV[i])) or 0) + tonumber(ARGV[i + 1])
    redis.call('HSET', KEYS[1], ARGV[i], string.format('%d', math.max(math.min(value, most), -most)))
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
