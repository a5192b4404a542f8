-- What wrk sends: pay.lua PATH PREFIX KEYS. Each request has the next of so many keys, and then they come again.

function init(args)
  path, prefix, keys, sent = args[1], args[2], tonumber(args[3]), 0
end

function request()
  local key = string.format('%s-%010d', prefix, sent % keys)
  sent = sent + 1
  local headers = { ['Idempotency-Key'] = '"' .. key .. '"', ['Content-Type'] = 'application/json' }
  return wrk.format('POST', path, headers, '{"key":"' .. key .. '"}')
end

function done(summary)
  local e = summary.errors
  local failed = e.connect + e.read + e.write + e.status + e.timeout
  print(string.format('\n%d %d %f', summary.requests, failed, summary.duration / 1e6))
end
