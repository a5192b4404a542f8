package idempotence

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

var (
	// A string of RFC 8941 with parameters behind it, or the key without quotation marks.
	quoted  = regexp.MustCompile(`^ *"((?:[ !#-\[\]-~]|\\["\\])*)"(?: *; *[a-z*][a-z0-9_.*-]*(?:=[!#-+\--:<-~]+)?)* *$`)
	bare    = regexp.MustCompile(`^ *([!#-+\--:<-~]+) *$`)
	escaped = regexp.MustCompile(`\\(.)`)
)

// parsed is the key in the values of the header, or "" if they are not one valid key.
func parsed(sent []string, strict bool) string {
	if len(sent) != 1 {
		return ""
	}
	key := ""
	if found := quoted.FindStringSubmatch(sent[0]); found != nil {
		key = escaped.ReplaceAllString(found[1], "$1")
	} else if found := bare.FindStringSubmatch(sent[0]); found != nil && !strict {
		key = found[1]
	}
	if len(key) > 255 {
		return ""
	}
	return key
}

// named is the request's key in the session: the caller, a colon, the key. No caller can produce the name of another
// caller's request.
func named(caller, key string) string {
	prefix := strings.NewReplacer("+", "%20", "~", "%7E", "%40", "@").Replace(url.QueryEscape(caller))
	if len(prefix) > 100 {
		prefix = "~" + digest([]byte(caller))
	}
	if name := prefix + ":" + key; len(name) <= 255 {
		return name
	}
	return (prefix + "~:" + digest([]byte(key)) + ":" + key)[:255]
}

// target is the path and the query as the client has sent them. r.URL is decoded, and http.StripPrefix changes it.
func target(r *http.Request) (path, query string) {
	if r.RequestURI == "" {
		return r.URL.EscapedPath(), r.URL.RawQuery
	}
	path, query, _ = strings.Cut(r.RequestURI, "?")
	// A proxy sends the absolute form, http://host/path.
	if scheme, rest, found := strings.Cut(path, "://"); found && !strings.Contains(scheme, "/") {
		_, path, _ = strings.Cut(rest, "/")
		path = "/" + path
	}
	return path, query
}

func digest(bytes []byte) string { return fmt.Sprintf("%x", sha256.Sum256(bytes)) }
