#!/bin/bash
# bash apply.sh NAME   in the root of a tree that has branch kd merged: the variant into solutions/cuda_kda_decode, with its tests.
# Without kd: git apply NAME.patch alone gives the kernel without tests.
set -e
H=$(cd "$(dirname "$0")" && pwd)
git apply --3way "$H/$1.patch" "$H/$1.tests.patch"
case $1 in matrix) n=12 ;; *) n=18 ;; esac
sed -i "s/(\"cuda_kda_decode\", [0-9]*, 144)/(\"cuda_kda_decode\", $n, 144)/" tests/kernels/test_kernel_resources.py
