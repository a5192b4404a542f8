"""The routes of one test of test_django_framework.py."""

from django.contrib.auth.decorators import login_required
from django.http import HttpResponse
from django.urls import path
from rest_framework.response import Response
from rest_framework.views import APIView
from test_django_framework import IdempotentMixin, Token, idempotent


class Rest(APIView):
    def post(self, request):
        return Response()


class Mixin(IdempotentMixin, APIView):
    authentication_classes = [Token]
    idempotent = idempotent("framework", identity=lambda request: request.user.pk)

    def post(self, request):
        return Response(status=201)


urlpatterns = [
    path("login", login_required(lambda request: HttpResponse())),
    path("rest", Rest.as_view()),
    path("mixin", Mixin.as_view()),
]
