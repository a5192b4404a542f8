# Sourced by the scripts that run the client for node. Changes to a copy of it below target/, so that nothing is built beside the
# sources, with the packages of the lock file. $root is the checkout.
# shellcheck shell=bash

work=${root:?}/target/clients/node
mkdir -p "$work/clients"
tar -C "$root/clients" --exclude node_modules --exclude dist -cf - node roundtrips vectors.json http_vectors.json | tar -C "$work/clients" -xf -
cd "$work/clients/node" || exit
if ! cmp -s package-lock.json node_modules/.lock; then
    quietly npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
    cp package-lock.json node_modules/.lock
fi
