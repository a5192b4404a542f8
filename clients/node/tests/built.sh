# Sourced by what runs the client for node: goes to a copy of it below target/, so that nothing is made beside the sources, with
# what npm installs as the lock file has it. $root is the checkout.
# shellcheck shell=bash

work=${root:?}/target/clients/node
mkdir -p "$work/clients"
tar -C "$root/clients" --exclude node_modules --exclude dist -cf - node vectors.json http_vectors.json | tar -C "$work/clients" -xf -
cd "$work/clients/node" || exit
if ! cmp -s package-lock.json node_modules/.lock; then
    quietly npm ci --no-audit --no-fund --loglevel=error
    cp package-lock.json node_modules/.lock
fi
