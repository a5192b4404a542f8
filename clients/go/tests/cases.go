package main

func serveCases(port string) {}
